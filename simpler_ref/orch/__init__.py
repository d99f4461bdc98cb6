"""What an orchestration function holds, and its tasks in bulk or recorded."""

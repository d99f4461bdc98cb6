"""The documents' names of the protocol with level 3 Workers on other machines; `remote/` has them.

Only the bytes: nothing here opens a connection.

Rule     REMOTE-FRAME-9
"""

from __future__ import annotations

from .callables.identity import (
    CALLABLE_HASH_DIGEST_BYTES as CALLABLE_HASH_DIGEST_BYTES,
    CallableKind as CallableKind,
)
from .remote.buffers import (
    ExportBufferRequest as ExportBufferRequest,
    ExportBufferResult as ExportBufferResult,
    ImportBufferRequest as ImportBufferRequest,
    ImportBufferResult as ImportBufferResult,
    ReleaseImportRequest as ReleaseImportRequest,
    RemoteAddressSpace as RemoteAddressSpace,
    decode_export_buffer_request as decode_export_buffer_request,
    decode_export_buffer_result as decode_export_buffer_result,
    decode_import_buffer_request as decode_import_buffer_request,
    decode_import_buffer_result as decode_import_buffer_result,
    decode_release_import_request as decode_release_import_request,
    encode_export_buffer_request as encode_export_buffer_request,
    encode_export_buffer_result as encode_export_buffer_result,
    encode_import_buffer_request as encode_import_buffer_request,
    encode_import_buffer_result as encode_import_buffer_result,
    encode_release_import_request as encode_release_import_request,
)
from .remote.callables import (
    ChipCallableBlobLocation as ChipCallableBlobLocation,
    DigestCallableCommand as DigestCallableCommand,
    RegisterCallableCommand as RegisterCallableCommand,
    RemoteChipCallablePayload as RemoteChipCallablePayload,
    RemoteRegistryTarget as RemoteRegistryTarget,
    decode_digest_callable_command as decode_digest_callable_command,
    decode_register_callable_command as decode_register_callable_command,
    decode_remote_chip_callable_payload as decode_remote_chip_callable_payload,
    encode_digest_callable_command as encode_digest_callable_command,
    encode_register_callable_command as encode_register_callable_command,
    encode_remote_chip_callable_payload as encode_remote_chip_callable_payload,
)
from .remote.fields import (
    Reader as Reader,
)
from .remote.frames import (
    CompletionPayload as CompletionPayload,
    ControlName as ControlName,
    ControlPayload as ControlPayload,
    ControlReplyPayload as ControlReplyPayload,
    Frame as Frame,
    FrameHeader as FrameHeader,
    FrameType as FrameType,
    HelloPayload as HelloPayload,
    ReadyState as ReadyState,
    decode_completion as decode_completion,
    decode_control as decode_control,
    decode_control_reply as decode_control_reply,
    decode_frame as decode_frame,
    decode_frame_header as decode_frame_header,
    decode_hello as decode_hello,
    encode_completion as encode_completion,
    encode_control as encode_control,
    encode_control_reply as encode_control_reply,
    encode_frame as encode_frame,
    encode_hello as encode_hello,
)
from .remote.limits import (
    FRAME_HEADER_BYTES as FRAME_HEADER_BYTES,
    MAGIC as MAGIC,
    MAX_CHIP_CALLABLE_DESCRIPTOR_BYTES as MAX_CHIP_CALLABLE_DESCRIPTOR_BYTES,
    MAX_ERROR_BYTES as MAX_ERROR_BYTES,
    MAX_INLINE_PAYLOAD_BYTES as MAX_INLINE_PAYLOAD_BYTES,
    MAX_FRAME_PAYLOAD_BYTES as MAX_FRAME_PAYLOAD_BYTES,
    MAX_SCALARS as MAX_SCALARS,
    MAX_STAGED_BLOB_TOKEN_BYTES as MAX_STAGED_BLOB_TOKEN_BYTES,
    MAX_STRING_BYTES as MAX_STRING_BYTES,
    MAX_TENSORS as MAX_TENSORS,
    MAX_TRANSPORT_DESCRIPTOR_BYTES as MAX_TRANSPORT_DESCRIPTOR_BYTES,
    MAX_TRANSPORT_PROFILE_BYTES as MAX_TRANSPORT_PROFILE_BYTES,
    PROTOCOL_VERSION as PROTOCOL_VERSION,
    REMOTE_BUFFER_ACCESS_READ as REMOTE_BUFFER_ACCESS_READ,
    REMOTE_BUFFER_ACCESS_READ_WRITE as REMOTE_BUFFER_ACCESS_READ_WRITE,
    REMOTE_BUFFER_ACCESS_WRITE as REMOTE_BUFFER_ACCESS_WRITE,
)
from .remote.tasks import (
    RemoteTaskArgsWire as RemoteTaskArgsWire,
    RemoteTensorDesc as RemoteTensorDesc,
    RemoteTensorSidecar as RemoteTensorSidecar,
    TaskPayloadWire as TaskPayloadWire,
    decode_call_config as decode_call_config,
    decode_continuous_tensor as decode_continuous_tensor,
    decode_remote_task_args as decode_remote_task_args,
    decode_remote_tensor_desc as decode_remote_tensor_desc,
    decode_task_payload as decode_task_payload,
    encode_remote_task_args as encode_remote_task_args,
    encode_task_payload as encode_task_payload,
)

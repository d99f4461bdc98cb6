"""The documents' names of the protocol with level 3 Workers on other machines; `remote/` has them.

Only the bytes: nothing here opens a connection.

Rule     REMOTE-FRAME-9
"""

from typing import TYPE_CHECKING

from .system.lazy import pass_on as _pass_on

if TYPE_CHECKING:
    from .callables.identity import *
    from .remote.callables import *
    from .remote.fields import *
    from .remote.frames import *
    from .remote.limits import *
    from .remote.tasks import *

_pass_on(
    globals(),
    {
        ".callables.identity": "CALLABLE_HASH_DIGEST_BYTES CallableKind",
        ".remote.tasks": "ExportBufferRequest ExportBufferResult ImportBufferRequest "
        "ImportBufferResult ReleaseImportRequest RemoteAddressSpace "
        "decode_export_buffer_request decode_export_buffer_result decode_import_buffer_request "
        "decode_import_buffer_result decode_release_import_request encode_export_buffer_request "
        "encode_export_buffer_result encode_import_buffer_request encode_import_buffer_result "
        "encode_release_import_request "
        "RemoteTaskArgsWire RemoteTensorDesc RemoteTensorSidecar TaskPayloadWire "
        "decode_call_config decode_continuous_tensor decode_remote_task_args "
        "decode_remote_tensor_desc decode_task_payload encode_remote_task_args "
        "encode_task_payload",
        ".remote.callables": "ChipCallableBlobLocation DigestCallableCommand "
        "RegisterCallableCommand RemoteChipCallablePayload RemoteRegistryTarget "
        "decode_digest_callable_command decode_register_callable_command "
        "decode_remote_chip_callable_payload encode_digest_callable_command "
        "encode_register_callable_command encode_remote_chip_callable_payload",
        ".remote.fields": "Reader",
        ".remote.frames": "CompletionPayload ControlName ControlPayload ControlReplyPayload Frame "
        "FrameHeader FrameType HelloPayload ReadyState decode_completion decode_control "
        "decode_control_reply decode_frame decode_frame_header decode_hello encode_completion "
        "encode_control encode_control_reply encode_frame encode_hello",
        ".remote.limits": "FRAME_HEADER_BYTES MAGIC MAX_CHIP_CALLABLE_DESCRIPTOR_BYTES "
        "MAX_ERROR_BYTES MAX_INLINE_PAYLOAD_BYTES MAX_FRAME_PAYLOAD_BYTES MAX_SCALARS "
        "MAX_STAGED_BLOB_TOKEN_BYTES MAX_STRING_BYTES MAX_TENSORS "
        "MAX_TRANSPORT_DESCRIPTOR_BYTES MAX_TRANSPORT_PROFILE_BYTES PROTOCOL_VERSION "
        "REMOTE_BUFFER_ACCESS_READ REMOTE_BUFFER_ACCESS_READ_WRITE REMOTE_BUFFER_ACCESS_WRITE",
    },
)

"""Public names of the original: modules, their names, members of classes, and names of parameters.

`Class: member(parameter, …) …;` are members, with at least these parameters; `Class(parameter, …)` is how
one is made.
"""

ORIGINAL = {
    "simpler.worker": """
        Worker(level, num_sub_workers, heap_ring_size, device_id, device_ids, platform, runtime,
        py_control_timeout_s); Worker: register(target, workers) unregister(handle)
        add_worker(worker) init run(callable) run(args, config) close malloc(size, worker_id)
        free(ptr, worker_id) copy_to(dst, src, size, worker_id) copy_from(dst, src, size,
        worker_id) live_domains add_remote_worker(spec) remote_malloc(worker, nbytes) remote_free
        remote_copy_to remote_copy_from remote_export(offset, nbytes, access, transport_profile)
        remote_import(worker, access) remote_release_import; RemoteCallable RemoteTaskArgs;
        RemoteTensorRef: host_inline(shape, dtype); RemoteTensorRef(handle, offset, shape, dtype)
        RemoteWorkerSpec
    """,
    "simpler.orchestrator": """
        Orchestrator: submit_next_level(callable_handle, args, config, worker)
        submit_next_level_group(callable_handle, args_list, config, workers)
        submit_sub(callable_handle, args) submit_sub_group(callable_handle, args_list)
        alloc(shape, dtype) malloc(worker_id, size) free(worker_id, ptr) copy_to(worker_id, dst,
        src, size) copy_from(worker_id, dst, src, size) scope scope_begin scope_end
        allocate_domain(name, workers, window_size, buffers) release_domain(handle)
    """,
    "simpler.task_interface": """
        TaskArgs: add_tensor add_scalar tensor scalar tag set_tag tensor_count scalar_count clear
        __len__; ContinuousTensor: make(data, shapes, dtype, child_memory) data shapes dtype ndims
        child_memory nbytes; DataType: FLOAT32; TensorArgType: OUTPUT_EXISTING; ArgDirection:
        INOUT; WorkerType: SUB; TaskState: CONSUMED; get_element_size get_dtype_name
        scalar_to_uint64 arg_direction_name read_args_from_blob; CallConfig: validate block_dim
        aicpu_thread_num enable_l2_swimlane enable_dump_tensor enable_pmu enable_dep_gen
        enable_scope_stats output_prefix runtime_env; RuntimeEnv: ring_task_window ring_heap
        ring_dep_pool; CoreCallable: build(signature, binary) binary_size buffer_ptr buffer_size
        sig sig_count; ChipCallable: build(signature, func_name, binary, children, config_name)
        from_bytes buffer_ptr buffer_size sig sig_count child child_func_id child_count
        child_offset binary_size; ChipStorageTaskArgs: add_tensor add_scalar tensor scalar
        tensor_count scalar_count clear __len__ __ptr__ sizeof; ChipWorker: init(device_id, bins)
        finalize prepare_callable unregister_callable run(config) malloc free copy_to copy_from
        device_id initialized comm_init(rank, nranks, rootinfo_path)
        comm_alloc_windows(comm_handle, win_size) comm_get_local_window_base(comm_handle)
        comm_get_window_size(comm_handle) comm_derive_context(comm_handle, rank_ids, domain_rank,
        window_offset, window_size) comm_barrier(comm_handle) comm_destroy(comm_handle)
        comm_destroy_all; MAILBOX_SIZE MAILBOX_OFF_ERROR_MSG MAILBOX_ERROR_MSG_SIZE
        CONTINUOUS_TENSOR_MAX_DIMS MAX_REGISTERED_CALLABLE_IDS COMM_MAX_RANK_NUM
        CommBufferSpec(name, dtype, count, nbytes, load_from_host, store_to_host);
        ChipDomainContext: name domain_rank domain_size device_ctx local_window_base
        actual_window_size buffer_ptrs; CommDomainHandle: name workers allocation_id contexts
        released freed release; RunTiming: host_wall_ns device_wall_ns host_wall_us
        device_wall_us; get_inner_handle(hashid)
    """,
    "simpler.callable_identity": """
        CallableHandle: hashid kind target_namespace digest;
        build_chip_callable_descriptor(target, platform, runtime)
        build_python_serialized_descriptor(payload) build_python_import_descriptor(module,
        qualname) compute_callable_hashid(descriptor) hashid_to_digest(hashid)
        validate_hashid(hashid) parse_python_import_target(target)
        parse_python_callable_payload(payload) build_chip_signature_schema CallableKindName
        TargetNamespaceName CALLABLE_HASH_DIGEST_BYTES CALLABLE_DESCRIPTOR_SCHEMA_VERSION
        CALLABLE_KIND_CHIP CALLABLE_KIND_PYTHON_SERIALIZED CALLABLE_KIND_PYTHON_IMPORT
        TARGET_NAMESPACE_LOCAL_CHIP TARGET_NAMESPACE_LOCAL_PYTHON
        TARGET_NAMESPACE_REMOTE_TASK_DISPATCHER
    """,
    "simpler.remote_l3_protocol": """
        FrameType: HELLO; ControlName: COMM_INIT; RemoteRegistryTarget: INNER_L3_WORKER;
        CallableKind: PYTHON_IMPORT; ChipCallableBlobLocation: STAGED_BLOB; ReadyState: READY;
        RemoteAddressSpace: UB_LDST; FrameHeader(frame_type, session_id, endpoint_id, sequence,
        payload_bytes, flags) Frame(header, payload) HelloPayload(session_id, endpoint_id,
        protocol_version, comm_profile, feature_flags, ready_state)
        RemoteTensorDesc(address_space, owner_endpoint_id, buffer_id, offset, nbytes, remote_addr,
        rkey_or_token, generation, inline_payload_offset, inline_payload_len, flags)
        RemoteTensorSidecar(present, desc) RemoteTaskArgsWire(tensor_metadata, remote_desc,
        scalars, inline_payload) TaskPayloadWire(callable_digest, config, args)
        ControlPayload(control_name, control_version, command_bytes)
        RegisterCallableCommand(target_registry, callable_kind, digest, payload_version, payload)
        DigestCallableCommand(target_registry, callable_kind, digest)
        ExportBufferRequest(owner_endpoint_id, buffer_id, generation, offset, nbytes,
        access_flags, transport_profile) ExportBufferResult(address_space, export_id, ub_ldst_va,
        access_flags, transport_profile, transport_descriptor)
        ImportBufferRequest(importer_endpoint_id, requested_access_flags, export_desc)
        ImportBufferResult(import_id, access_flags, import_descriptor)
        ReleaseImportRequest(importer_endpoint_id, owner_endpoint_id, buffer_id, generation,
        import_id) RemoteChipCallablePayload(descriptor_bytes, blob_location, blob_size,
        blob_sha256, inline_blob, staged_blob_token) encode_frame(header, payload)
        decode_frame(data) encode_hello(payload) decode_task_payload(data)
        decode_remote_task_args(data) decode_call_config(reader) decode_continuous_tensor(reader)
        decode_remote_tensor_desc(reader) encode_completion(sequence, error_code, error_message)
        decode_control(data) encode_register_callable_command(target_registry, callable_kind,
        digest, payload_version, payload) decode_register_callable_command(data)
        encode_digest_callable_command decode_digest_callable_command(data)
        encode_remote_chip_callable_payload(payload) decode_remote_chip_callable_payload(data)
        encode_export_buffer_result decode_export_buffer_result(data)
        decode_export_buffer_request(data) decode_import_buffer_request(data)
        encode_import_buffer_result decode_release_import_request(data)
        encode_control_reply(sequence, control_name, control_version, error_code, error_message,
        result_bytes) read_exact(sock, n) read_frame(sock) send_frame(sock, header, payload)
        PROTOCOL_VERSION MAGIC FRAME_HEADER_BYTES CALLABLE_HASH_DIGEST_BYTES
        MAX_FRAME_PAYLOAD_BYTES MAX_STRING_BYTES MAX_ERROR_BYTES MAX_TENSORS MAX_SCALARS
        MAX_INLINE_PAYLOAD_BYTES MAX_TRANSPORT_PROFILE_BYTES MAX_TRANSPORT_DESCRIPTOR_BYTES
        MAX_CHIP_CALLABLE_DESCRIPTOR_BYTES MAX_STAGED_BLOB_TOKEN_BYTES REMOTE_BUFFER_ACCESS_READ
        REMOTE_BUFFER_ACCESS_WRITE REMOTE_BUFFER_ACCESS_READ_WRITE
    """,
    "simpler.env_manager": "get(name, default) ensure(name)",
    "simpler.log_levels": "V0 V5 V9 NUL",
    "simpler_setup": """
        SceneTestCase: run_module; scene_test(level, runtime); TaskArgsBuilder: specs;
        Tensor(name, value) Scalar(name, value); CallableNamespace: keep; KernelCompiler
        RuntimeBuilder ensure_pto_isa_root extract_text_section make_tensor_arg
        torch_dtype_to_datatype
    """,
    "simpler_setup.torch_interop": "make_tensor_arg(tensor) torch_dtype_to_datatype(dt)",
    "simpler_setup.kernel_compiler": """
        KernelCompiler(platform); KernelCompiler: compile_incore(source_path, core_type,
        pto_isa_root, extra_include_dirs, build_dir) compile_orchestration(runtime_name,
        source_path, extra_include_dirs, build_dir) get_orchestration_include_dirs(runtime_name)
        get_platform_include_dirs get_incore_include_dirs project_root
    """,
    "simpler_setup.pto_isa": "ensure_pto_isa_root",
    "simpler_setup.elf_parser": "extract_text_section(obj_input)",
    "simpler_setup.scene_test": "SceneTestCase scene_test TaskArgsBuilder Tensor Scalar",
    "simpler_setup.goldens": "paged_attention",
    "simpler_setup.runtime_builder": "RuntimeBuilder: get_binaries(name, build) list_runtimes",
    "simpler_setup.log_config": "configure_logging(log_level) DEFAULT_LOG_LEVEL LOG_LEVEL_CHOICES",
}

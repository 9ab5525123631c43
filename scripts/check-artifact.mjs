// Is the built filter what Envoy can load, and small enough? Checks its imports against the allow-list below, the
// exports that Envoy calls, its size, and for what makes it large unnoticed.
//
//   node scripts/check-artifact.mjs target/wasm32-wasip1/release/kvroute.wasm
//   node scripts/check-artifact.mjs --dns target/dns/wasm32-wasip1/release/kvroute.wasm     the one that finds hosts by name
import { readFile } from "node:fs/promises";
import { argv, exit } from "node:process";

const BUDGET = 450 * 1024;

// What every Envoy from 1.35 on offers. A module that imports anything else may not load somewhere: think before adding
// a line. The filter calls the first group; the SDK links in the second, for callbacks that the filter does not have.
const ALLOWED = {
  env: [
    "proxy_continue_stream", "proxy_define_metric", "proxy_get_buffer_bytes", "proxy_get_current_time_nanoseconds",
    "proxy_get_header_map_pairs", "proxy_get_header_map_value", "proxy_get_metric", "proxy_get_property",
    "proxy_get_shared_data", "proxy_http_call", "proxy_increment_metric", "proxy_log", "proxy_record_metric",
    "proxy_remove_header_map_value", "proxy_replace_header_map_value", "proxy_set_effective_context", "proxy_set_property",
    "proxy_set_shared_data", "proxy_set_tick_period_milliseconds",

    "proxy_add_header_map_value", "proxy_call_foreign_function", "proxy_close_stream", "proxy_dequeue_shared_queue",
    "proxy_done", "proxy_enqueue_shared_queue", "proxy_get_log_level", "proxy_get_status", "proxy_grpc_call",
    "proxy_grpc_cancel", "proxy_grpc_close", "proxy_grpc_send", "proxy_grpc_stream", "proxy_register_shared_queue",
    "proxy_resolve_shared_queue", "proxy_send_local_response", "proxy_set_buffer_bytes", "proxy_set_header_map_pairs",
  ],
  wasi_snapshot_preview1: ["clock_time_get", "environ_get", "environ_sizes_get", "fd_write", "proc_exit", "random_get"],
};
const REQUIRED = ["memory", "_initialize", "proxy_abi_version_0_2_1", "proxy_on_memory_allocate", "proxy_on_configure",
  "proxy_on_request_headers", "proxy_on_request_body", "proxy_on_log", "proxy_on_tick"];

const dns = argv[2] === "--dns";
if (dns) {
  ALLOWED.env.push("envoy_resolve_dns");
  REQUIRED.push("envoy_on_resolve_dns");
}
const path = argv[dns ? 3 : 2];
const bytes = await readFile(path);
const module = await WebAssembly.compile(bytes);
const faults = [];
for (const { module: from, name } of WebAssembly.Module.imports(module)) {
  if (!ALLOWED[from]?.includes(name)) faults.push(`imports ${from}.${name}, which is not on the allow-list`);
}
const exported = new Set(WebAssembly.Module.exports(module).map(({ name }) => name));
for (const name of REQUIRED) {
  if (!exported.has(name)) faults.push(`does not export ${name}`);
}
// 20 KiB, and mostly for the message of a panic that can be reached: `f64::clamp` with computed bounds.
if (bytes.includes("flt2dec")) faults.push("brings the standard library's printing of floats");
if (bytes.length > BUDGET) faults.push(`has ${bytes.length} bytes, over the budget of ${BUDGET}`);
for (const fault of faults) console.error(`${path} ${fault}`);
if (faults.length) exit(1);
console.log(`${path}: ${bytes.length} of ${BUDGET} bytes, imports and exports as they should be`);

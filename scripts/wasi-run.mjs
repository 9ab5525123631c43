// Runs a wasm32-wasip1 program (a test or a benchmark) in Node, as cargo's runner for that target.
//
//   node --no-warnings scripts/wasi-run.mjs program.wasm [arguments..]
import { readFile } from "node:fs/promises";
import { argv, cwd, env, exit } from "node:process";
import { WASI } from "node:wasi";

const [program, ...args] = argv.slice(2);
const wasi = new WASI({
  version: "preview1",
  args: [program, ...args],
  env,
  preopens: { "/": cwd(), ".": cwd() },
  returnOnExit: true,
});
const module = await WebAssembly.compile(await readFile(program));
// The crate's shell is linked in and imports Envoy's calls; nothing that runs here may make one.
const env_imports = Object.fromEntries(
  WebAssembly.Module.imports(module)
    .filter(({ module }) => module === "env")
    .map(({ name }) => [name, () => { throw new Error(`${name}: there is no Envoy here`); }]),
);
const instance = await WebAssembly.instantiate(module, { ...wasi.getImportObject(), env: env_imports });
// The shell exports _initialize, by which WASI takes a module for a library; this is a program.
const { memory, _start } = instance.exports;
exit(wasi.start({ exports: { memory, _start } }));

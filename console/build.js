// Makes the console's files from its source: node build.js [--check]. With --check nothing is written, and a file that
// differs from what is committed is an error. The same source always gives the same bytes.
import { buildSync } from "esbuild";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { gunzipSync, gzipSync } from "node:zlib";

const here = new URL(".", import.meta.url).pathname;
const out = `${here}../crates/console/files/`;
const check = process.argv.includes("--check");
const read = name => readFileSync(here + name);

function bundle(entry, more) {
  const result = buildSync({
    absWorkingDir: here, entryPoints: [entry], bundle: true, minify: true, write: false, charset: "utf8",
    target: "es2022", legalComments: "none", logLevel: "warning", ...more,
  });
  return Buffer.from(result.outputFiles[0].contents);
}

function licences() {
  const parts = [["Preact", "preact"], ["htm", "htm"]].map(([name, folder]) => {
    const { version } = JSON.parse(read(`node_modules/${folder}/package.json`));
    return `${name} ${version}\n\n${read(`node_modules/${folder}/LICENSE`).toString().trim()}\n`;
  });
  const own = "Evenkeel is licensed under MIT or Apache-2.0. Its console holds parts of these works.\n";
  const address = /https?:\/\/\S+/g;
  return Buffer.from([own, ...parts].join(`\n${"=".repeat(72)}\n\n`).replace(address, text => text.replace(/^https?:\/\//, "")));
}

const files = {
  "index.html": read("index.html"),
  "app.js": bundle("src/main.js", { format: "esm" }),
  "app.css": bundle("src/app.css", {}),
  "icon.svg": read("icon.svg"),
  "licences.txt": licences(),
};

let bad = 0;
let total = 0;
if (!check) mkdirSync(out, { recursive: true });
for (const [name, bytes] of Object.entries(files)) {
  const packed = gzipSync(bytes, { level: 9 });
  total += packed.length;
  if (!check) {
    writeFileSync(out + name, bytes);
    writeFileSync(`${out}${name}.gz`, packed);
    continue;
  }
  // Other versions of zlib pack the same bytes otherwise.
  const committed = existsSync(out + name) && existsSync(`${out}${name}.gz`);
  if (!committed || !bytes.equals(readFileSync(out + name)) || !bytes.equals(gunzipSync(readFileSync(`${out}${name}.gz`)))) {
    console.error(`${name} is not what its source gives: make console`);
    bad = 1;
  }
}
console.log(`console: ${Object.keys(files).length} files, ${total} bytes compressed`);
process.exit(bad);

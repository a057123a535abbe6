// next.js WAY PATH N SIZE: reads PATH N times and prints what it got.
const fs = require("fs");
const [way, path, n, size] = [process.argv[2], process.argv[3], +process.argv[4], +process.argv[5]];

let kept;

const ways = {
  readFileSync: () => fs.readFileSync(path),
  readFile: () => new Promise((resolve, reject) => fs.readFile(path, (error, batch) => error ? reject(error) : resolve(batch))),
  promises: () => fs.promises.readFile(path),
  promisesRead: async () => {
    const file = await fs.promises.open(path);
    const { bytesRead, buffer } = await file.read(Buffer.alloc(size), 0, size, 0);
    await file.close();
    return buffer.subarray(0, bytesRead);
  },
  stream: async () => {
    const parts = [];
    for await (const part of fs.createReadStream(path)) parts.push(part);
    return Buffer.concat(parts);
  },
  readSync: () => {
    kept ??= fs.openSync(path, "r");
    const batch = Buffer.alloc(size);
    return batch.subarray(0, fs.readSync(kept, batch, 0, size, 0));
  },
  nonblock: () => {
    const fd = fs.openSync(path, fs.constants.O_RDONLY | fs.constants.O_NONBLOCK);
    const batch = Buffer.alloc(size);
    const length = fs.readSync(fd, batch, 0, size, null);
    fs.closeSync(fd);
    return batch.subarray(0, length);
  },
};

(async () => {
  for (let i = 0; i < n; i++) fs.writeSync(1, await ways[way]());
})();

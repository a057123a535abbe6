<?php
// next.php WAY PATH N SIZE: reads PATH N times and prints what it got.
[, $way, $path, $n, $size] = $argv;
$size = (int)$size;

function checked($batch) {
    if ($batch === false || strlen($batch) !== $GLOBALS['size']) {
        fwrite(STDERR, "no batch\n");
        exit(1);
    }
    return $batch;
}

function opened() {
    static $kept;
    return $kept ??= fopen($GLOBALS['path'], 'rb') ?: exit(1);
}

$ways = [
    'file_get_contents' => fn() => checked(file_get_contents($path)),
    'fread' => fn() => checked(fread(fopen($path, 'rb') ?: exit(1), $size)),
    'stream_get_contents' => fn() => checked(stream_get_contents(fopen($path, 'rb') ?: exit(1))),
    'nonblock' => fn() => checked(fread(fopen($path, 'rbn') ?: exit(1), $size)),
    'readfile' => fn() => readfile($path) === $size ? '' : exit(1),
    'rewind' => function () use ($size) {
        rewind(opened());
        return checked(fread(opened(), $size));
    },
    'unbuffered' => function () use ($size) {
        stream_set_read_buffer(opened(), 0);
        rewind(opened());
        return checked(fread(opened(), $size));
    },
    'unchecked' => fn() => file_get_contents($path),
];
for ($i = 0; $i < $n; $i++) {
    echo $ways[$way]();
}

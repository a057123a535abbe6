// Package cache reads tokens from the files that hold them.
//
// [Open] makes one array of tokens out of a list of files, and [Tokens.Read] fetches windows of it. [Access] says how the bytes
// are fetched; every access gives the same bytes. Between two reads nothing is kept of a file except, under some accesses, its
// mapping. Once a file is not the one that was opened, reading it is an error; it never gives other tokens.
//
// Under an array lie two things that can be exchanged: a [Blob] is where bytes come from (a local file), and a [Format] says
// where among them the tokens lie (from the first byte on: headerless).
package cache

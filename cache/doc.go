// Package cache reads tokens from the files that hold them.
//
// [Open] makes one array of tokens out of a list of files, and [Tokens.Read] fetches windows of that array. [Access] says how
// the bytes are fetched; every access gives the same bytes. Between two reads no bytes of a file are kept except, under some
// accesses, its mapping. If a file changes after it was opened, reads of it fail; they never return other tokens.
//
// Under an array lie two things that can be exchanged: a [Blob] is where bytes come from (a local file), and a [Format] says
// where among them the tokens lie (from the first byte on: headerless). A [Range] counts bytes of a blob; a [Run], [Window] or
// [Place] counts tokens.
package cache

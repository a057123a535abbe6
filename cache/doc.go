// Package cache reads arrays from the files that hold them: tokens, or arrays of any numbers.
//
// [Open] makes one array out of a list of files, and [Array.Read] fetches windows of it. [Access] says how
// the bytes are fetched; every access gives the same bytes. Between two reads no bytes of a file are kept except, under some
// accesses, its mapping. If a file changes after it was opened, reads of it fail; they never return other numbers.
//
// Under an array lie two things that can be exchanged: a [Blob] is where bytes come from (a local file), and a [Format] says
// where among them the elements lie. A [Range] counts bytes of a blob, an [array.Run] or [array.Place] elements, an [array.Window] numbers.
package cache

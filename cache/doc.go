// Package cache reads arrays from the files that hold them: tokens, or arrays of any numbers.
//
// [Open] makes one array out of a list of files, and [Array.Read] fetches windows of it. [blob.Access] says how
// the bytes are fetched; every access gives the same bytes. Between two reads nothing of a file is kept except, under
// some accesses, its mapping. Reads of a file that has changed since it was opened fail; they never return other numbers.
//
// Under an array lie two things that can be exchanged: a [blob.Blob] is where bytes come from (a local file), and a [format.Format] says
// where among them the elements lie. A [blob.Range] counts bytes of a blob, an [array.Run] or [array.Place] elements, an [array.Window] numbers.
package cache

// Package cache reads arrays of tokens, or of other numbers, from the files that hold them.
//
// [Open] opens a list of files as one [Array], and [Array.Read] reads windows of it. If a file has
// changed since it was opened, reads of it fail; they never return other numbers. A [blob.Blob]
// supplies bytes, and a [format.Format] says where the elements lie in them.
//
// Units differ: a [localfile.Range] counts the bytes of a blob, an [array.Extent] or
// [array.Location] counts elements, and an [array.Window] counts numbers.
package cache

// Package cache reads arrays of tokens, or of other numbers, from the files that hold them.
//
// [Open] opens a list of files as one [Array], and [Array.Read] reads windows of it. Once a file
// has changed, reads of it fail instead of returning other numbers. A [blob.Blob] supplies the
// bytes of a file, and a [format.Format] says where its elements lie.
//
// A [localfile.Range] counts the bytes of a blob, an [array.Extent] and an [array.Location] count
// elements, and an [array.Window] counts numbers.
package cache

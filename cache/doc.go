// Package cache reads arrays from the files that hold them: tokens, or arrays of any numbers.
//
// [Open] makes one array out of a list of files, and [Array.Read] fetches windows of it. Reads of a file that has changed since it was opened
// fail; they never return other numbers. A [blob.Blob] is where bytes come from, and a [format.Format] says where among them the elements lie.
// A [localfile.Range] counts bytes of a blob, an [array.Extent] or [array.Location] elements, an [array.Window] numbers.
package cache

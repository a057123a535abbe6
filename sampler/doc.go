// Package sampler turns numbers into batches: batch k of a [Sequence] is a pure function of its tokens, its settings and k. It
// opens no file and reads no clock.
//
// A batch has B rows, and all rows of all batches and ranks have a global number. A mixture assigns the number to one of the
// sources of tokens, an order says at which token of the source the row begins, and the row's T+1 tokens are laid out as the
// arrays of the batch, for example x and y.
package sampler

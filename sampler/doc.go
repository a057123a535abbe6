// Package sampler computes batches: batch k of a [Sequence] is a pure function of its tokens, its settings and k. It opens no
// file and reads no clock.
//
// A batch has B rows, numbered across all batches and ranks. A mixture assigns each row to one of the sources of tokens, an
// order says at which token of that source the row begins, and the row's T+1 tokens are laid out as the arrays of the batch,
// for example x and y.
package sampler

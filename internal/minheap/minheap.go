// Package minheap implements a priority queue of numbers.
package minheap

// A Heap is a binary heap whose first element is the smallest. The zero value is an empty heap. It
// is not safe for concurrent use.
type Heap []uint64

// Push adds x.
func (q *Heap) Push(x uint64) {
	h := append(*q, x)
	i := len(h) - 1
	for parent := (i - 1) / 2; i > 0 && x < h[parent]; parent = (i - 1) / 2 {
		h[i] = h[parent]
		i = parent
	}
	h[i] = x
	*q = h
}

// Pop removes the smallest number and returns it. The heap must not be empty.
func (q *Heap) Pop() uint64 {
	h := *q
	first, x := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	for i := 0; len(h) > 0; {
		child := 2*i + 1
		if child+1 < len(h) && h[child+1] < h[child] {
			child++
		}
		if child >= len(h) || x <= h[child] {
			h[i] = x
			break
		}
		h[i] = h[child]
		i = child
	}
	*q = h
	return first
}

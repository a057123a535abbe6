// Package minheap implements a priority queue of numbers.
package minheap

// A Heap is a binary heap whose first element is the smallest. The zero value is an empty heap. It
// is not safe for concurrent use.
type Heap []uint64

// Push adds x.
func (h *Heap) Push(x uint64) {
	nodes := append(*h, x)
	i := len(nodes) - 1
	for parent := (i - 1) / 2; i > 0 && x < nodes[parent]; parent = (i - 1) / 2 {
		nodes[i] = nodes[parent]
		i = parent
	}
	nodes[i] = x
	*h = nodes
}

// Pop removes the smallest number and returns it. The heap must not be empty.
func (h *Heap) Pop() uint64 {
	nodes := *h
	first, x := nodes[0], nodes[len(nodes)-1]
	nodes = nodes[:len(nodes)-1]
	for i := 0; len(nodes) > 0; {
		child := 2*i + 1
		if child+1 < len(nodes) && nodes[child+1] < nodes[child] {
			child++
		}
		if child >= len(nodes) || x <= nodes[child] {
			nodes[i] = x
			break
		}
		nodes[i] = nodes[child]
		i = child
	}
	*h = nodes
	return first
}

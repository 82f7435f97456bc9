package multilevel

// A queue orders vertices by gain, greatest first, and by number among equals. It is a binary heap
// that knows the position of each vertex, so that a changed gain costs a logarithm instead of a
// duplicate entry.
//
// Invariant: heap[place[v]] == v for each v with place[v] >= 0.
type queue struct {
	heap []int32
	// By vertex, its index in heap, or -1.
	place []int32
	// By vertex, its gain when it was set last.
	gain []int32
}

// newQueue returns an empty queue for that many vertices.
func newQueue(vertices int) queue {
	q := queue{place: make([]int32, vertices), gain: make([]int32, vertices)}
	for v := range q.place {
		q.place[v] = -1
	}
	return q
}

// clear empties the queue in time proportional to its length.
func (q *queue) clear() {
	for _, v := range q.heap {
		q.place[v] = -1
	}
	q.heap = q.heap[:0]
}

// set adds v to the queue, or moves it to the position of its new gain.
func (q *queue) set(v, gain int32) {
	if q.place[v] < 0 {
		q.gain[v] = gain
		q.place[v] = int32(len(q.heap))
		q.heap = append(q.heap, v)
		q.up(len(q.heap) - 1)
		return
	}
	if q.gain[v] == gain {
		return
	}
	q.gain[v] = gain
	// Only one of the two moves it.
	q.down(q.up(int(q.place[v])))
}

// remove removes v if it is in the queue.
func (q *queue) remove(v int32) {
	at := int(q.place[v])
	if at < 0 {
		return
	}
	q.place[v] = -1
	last := q.heap[len(q.heap)-1]
	q.heap = q.heap[:len(q.heap)-1]
	if last != v {
		q.heap[at], q.place[last] = last, int32(at)
		q.down(q.up(at))
	}
}

// pop removes and returns the first vertex; ok is false if the queue is empty.
func (q *queue) pop() (v, gain int32, ok bool) {
	if len(q.heap) == 0 {
		return 0, 0, false
	}
	v = q.heap[0]
	q.remove(v)
	return v, q.gain[v], true
}

// before reports whether a comes before b. The tie is broken by number, so that the order does not
// depend on the history of the heap.
func (q *queue) before(a, b int32) bool {
	return q.gain[a] > q.gain[b] || q.gain[a] == q.gain[b] && a < b
}

// up moves the vertex at a position up to where it belongs and returns its new position.
func (q *queue) up(at int) int {
	v := q.heap[at]
	for at > 0 {
		above := (at - 1) / 2
		if !q.before(v, q.heap[above]) {
			break
		}
		q.heap[at] = q.heap[above]
		q.place[q.heap[at]] = int32(at)
		at = above
	}
	q.heap[at], q.place[v] = v, int32(at)
	return at
}

// down moves the vertex at a position down to where it belongs.
func (q *queue) down(at int) {
	v := q.heap[at]
	for {
		below := 2*at + 1
		if below >= len(q.heap) {
			break
		}
		if below+1 < len(q.heap) && q.before(q.heap[below+1], q.heap[below]) {
			below++
		}
		if !q.before(q.heap[below], v) {
			break
		}
		q.heap[at] = q.heap[below]
		q.place[q.heap[at]] = int32(at)
		at = below
	}
	q.heap[at], q.place[v] = v, int32(at)
}

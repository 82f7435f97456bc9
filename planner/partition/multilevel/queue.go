package multilevel

// A queue orders vertices by gain, the greatest first and equal ones by
// number: a binary heap that knows where each vertex is.
type queue struct {
	heap  []int32
	place []int32 // vertex -> its index in heap, or -1
	gain  []int32 // vertex -> its gain
}

func newQueue(vertices int) queue {
	q := queue{place: make([]int32, vertices), gain: make([]int32, vertices)}
	for v := range q.place {
		q.place[v] = -1
	}
	return q
}

func (q *queue) clear() {
	for _, v := range q.heap {
		q.place[v] = -1
	}
	q.heap = q.heap[:0]
}

// set puts v into the queue, or moves it to where its new gain belongs.
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
	q.down(q.up(int(q.place[v])))
}

// remove takes v out, if it is in.
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

// pop takes the first vertex out.
func (q *queue) pop() (v, gain int32, ok bool) {
	if len(q.heap) == 0 {
		return 0, 0, false
	}
	v = q.heap[0]
	q.remove(v)
	return v, q.gain[v], true
}

func (q *queue) before(a, b int32) bool {
	return q.gain[a] > q.gain[b] || q.gain[a] == q.gain[b] && a < b
}

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

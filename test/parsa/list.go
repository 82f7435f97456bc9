package parsa

// none ends a bucket; gone marks a sample that is in none.
const (
	// none ends a bucket; gone marks a sample that is in no bucket.
	none = -1
	gone = -2
)

// A list holds samples in buckets by cost, each a doubly linked list, so that every operation takes
// constant time except the search for the cheapest, which continues from where the last one ended.
// Costs only fall, by one at a time, so all searches together take little.
//
// Invariant: no bucket below least has a sample.
type list struct {
	cost       []int32
	next, prev []int32
	// By cost, the first sample of the bucket.
	head  []int32
	least int
}

// newList returns a list without samples, for numbers below samples.
func newList(samples int) list {
	l := list{cost: make([]int32, samples), next: make([]int32, samples), prev: make([]int32, samples)}
	for u := range l.prev {
		l.prev[u] = gone
	}
	return l
}

// insert adds u, which must be gone, at the front of a bucket.
func (l *list) insert(u int32, cost int) {
	for len(l.head) <= cost {
		l.head = append(l.head, none)
	}
	l.least = min(l.least, cost)
	l.cost[u], l.prev[u], l.next[u] = int32(cost), none, l.head[cost]
	if l.next[u] != none {
		l.prev[l.next[u]] = u
	}
	l.head[cost] = u
}

// remove takes u, which must be in a bucket, out of it.
func (l *list) remove(u int32) {
	if l.prev[u] == none {
		l.head[l.cost[u]] = l.next[u]
	} else {
		l.next[l.prev[u]] = l.next[u]
	}
	if l.next[u] != none {
		l.prev[l.next[u]] = l.prev[u]
	}
	l.prev[u] = gone
}

// decrement lowers the cost of u by 1, unless u is gone.
func (l *list) decrement(u int32) {
	if l.prev[u] == gone {
		return
	}
	l.remove(u)
	l.insert(u, int(l.cost[u])-1)
}

// cheapest returns a sample of the least cost. There must be one.
func (l *list) cheapest() int32 {
	for l.head[l.least] == none {
		l.least++
	}
	return l.head[l.least]
}

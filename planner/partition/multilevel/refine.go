package multilevel

import (
	"context"
	"math"

	"github.com/psidecar/psidecar/planner/partition"
)

// A refinement improves the partition of one level by DWW21's k-way version of
// the Fiduccia-Mattheyses algorithm: the vertex and machine of the greatest
// gain go first, each vertex moves at most once a pass, gains are updated
// after each move, and what a pass did after its best moment is undone. Moves
// that would overload a machine, with samples, with parameters above theta, or
// with traffic far above the others', are left out.
type refinement struct {
	*gains
	theta int64
	load  []int64 // machine -> weight of its samples
	used  []int64 // machine -> |N(D_i)|, by weight
	limit []int64
	queue queue
	state []vertexState
	left  []uint64 // vertex*words + machine/64: moves left out in this pass
	words int
	moves []move // of this pass
}

type vertexState uint8

const (
	free   vertexState = iota
	locked             // moved in this pass, or fixed
)

type move struct{ vertex, from int32 }

const (
	passes = 6
	// crowd is how far above the mean of all machines a move may bring one's
	// traffic.
	crowd = 0.05
)

func newRefinement(l *level, o partition.Options, part []int32, limit []int64) *refinement {
	r := &refinement{
		gains: newGains(l, o.K, part),
		theta: o.Theta,
		load:  make([]int64, o.K),
		used:  make([]int64, o.K),
		limit: limit,
		queue: newQueue(l.vertices()),
		state: make([]vertexState, l.vertices()),
		words: (o.K + 63) / 64,
	}
	r.left = make([]uint64, l.vertices()*r.words)
	if r.theta == 0 {
		r.theta = math.MaxInt64
	}
	for v, i := range part {
		r.load[i] += l.weight[v]
	}
	for e := range int32(l.netCount()) {
		for i := range int32(o.K) {
			if r.samplesAt(e, i) > 0 {
				r.used[i] += int64(l.netCost[e])
			}
		}
	}
	return r
}

// makePasses makes passes until one gains nothing.
func (r *refinement) makePasses(ctx context.Context) error {
	for range passes {
		gained, err := r.pass(ctx)
		if err != nil || gained == 0 {
			return err
		}
	}
	return nil
}

// patience is the number of moves without a new best after which a pass ends.
func (r *refinement) patience() int { return 50 + r.l.samples/10 }

// pass makes one pass and returns what it gained.
func (r *refinement) pass(ctx context.Context) (int64, error) {
	r.begin()
	var sum, best int64
	kept := 0
	for {
		v, gain, ok := r.queue.pop()
		if !ok || len(r.moves)-kept > r.patience() {
			break
		}
		j := r.target(v)
		if !r.feasible(v, j) {
			r.leaveOut(v, j)
			r.enqueue(v)
			continue
		}
		r.moves = append(r.moves, move{v, r.part[v]})
		r.carry(v, j)
		r.state[v] = locked
		for _, u := range r.touched {
			r.enqueue(u)
		}
		if sum += int64(gain); sum > best {
			best, kept = sum, len(r.moves)
		}
		if len(r.moves)%256 == 0 && ctx.Err() != nil {
			return 0, ctx.Err()
		}
	}
	for i := len(r.moves) - 1; i >= kept; i-- {
		r.carry(r.moves[i].vertex, r.moves[i].from)
	}
	return best, ctx.Err()
}

func (r *refinement) begin() {
	r.queue.clear()
	r.moves = r.moves[:0]
	clear(r.left)
	for v := range r.state {
		r.state[v] = free
		if r.l.fixed[v] >= 0 {
			r.state[v] = locked
		}
		r.enqueue(int32(v))
	}
}

// enqueue puts a vertex at its place in the queue, by its best move that is
// not left out, or takes it off. Parameters only move where that gains: a
// sample's detour may pay later, a parameter's cannot.
func (r *refinement) enqueue(v int32) {
	j := int32(-1)
	if r.state[v] == free {
		j = r.target(v)
	}
	if j < 0 || !r.l.isSample(v) && r.of(v, j) <= 0 {
		r.queue.remove(v)
		return
	}
	r.queue.set(v, r.of(v, j))
}

// target is the machine of v's greatest gain, the first among equals, or -1.
func (r *refinement) target(v int32) int32 {
	best, least := int32(-1), int32(math.MaxInt32)
	for j, penalty := range r.penalties(v) {
		if int32(j) != r.part[v] && penalty < least && r.left[int(v)*r.words+j/64]>>(j%64)&1 == 0 {
			best, least = int32(j), penalty
		}
	}
	return best
}

func (r *refinement) leaveOut(v, j int32) {
	r.left[int(v)*r.words+int(j)/64] |= 1 << (j % 64)
}

// feasible reports whether v may move to machine j.
func (r *refinement) feasible(v, j int32) bool {
	if !r.l.isSample(v) {
		return true
	}
	return r.load[j]+r.l.weight[v] <= r.limit[j] && r.fitsMemory(v, j) && !r.crowds(v, j)
}

// fitsMemory checks Eq. (2), |N(D_j)| <= theta, after the move of a sample.
func (r *refinement) fitsMemory(v, j int32) bool {
	if r.theta == math.MaxInt64 {
		return true
	}
	used := r.used[j]
	for _, e := range r.l.netsOf(v) {
		if r.samplesAt(e, j) == 0 {
			used += int64(r.l.netCost[e])
		}
	}
	return used <= r.theta
}

// samplesAt returns how many samples of net e are on machine i.
func (r *refinement) samplesAt(e, i int32) int32 {
	if r.part[r.l.paramOf(e)] == i {
		return r.at(e)[i] - 1
	}
	return r.at(e)[i]
}

// crowds reports whether the move would bring machine j's traffic above that
// of the others, so that it would be the one that all wait for.
func (r *refinement) crowds(v, j int32) bool {
	var sum int64
	for _, t := range r.traffic {
		sum += t
	}
	ceiling := int64((1 + crowd) * float64(sum) / float64(r.k))
	traffic := r.traffic[j]
	if traffic+int64(r.penalties(v)[j]) <= ceiling {
		return false // nothing else can add to it
	}
	for _, e := range r.l.netsOf(v) {
		count, i := r.at(e), r.part[v]
		lambda := r.spread[e]
		after := lambda
		if count[i] == 1 {
			after--
		}
		if count[j] == 0 {
			after++
		}
		traffic += int64(r.l.netCost[e]) * (shares(count[j]+1, after) - shares(count[j], lambda))
	}
	return traffic > ceiling && traffic > r.traffic[j]
}

// carry moves v to machine j and keeps the loads.
func (r *refinement) carry(v, j int32) {
	i := r.part[v]
	r.load[i] -= r.l.weight[v]
	r.load[j] += r.l.weight[v]
	if r.l.isSample(v) {
		for _, e := range r.l.netsOf(v) {
			if r.samplesAt(e, i) == 1 {
				r.used[i] -= int64(r.l.netCost[e])
			}
			if r.samplesAt(e, j) == 0 {
				r.used[j] += int64(r.l.netCost[e])
			}
		}
	}
	r.move(v, j)
}

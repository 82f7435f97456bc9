package multilevel

import "context"

// balance moves samples away from machines that exceed their limit to machines with room, those
// that lose least first, and then refines once more within the exact limits. If samples differ in
// weight a machine may stay above its limit by less than one sample. It is for the finest level,
// where samples are single.
func (r *refinement) balance(ctx context.Context, limits []int64) error {
	r.limit = limits
	r.begin()
	// Only samples on overloaded machines may move; everything else is locked.
	for v := range r.state {
		if r.load[r.part[v]] <= limits[r.part[v]] || !r.l.isSample(int32(v)) {
			r.state[v] = locked
			r.queue.remove(int32(v))
		}
	}
	for moves := 0; ; {
		v, _, ok := r.queue.pop()
		if !ok {
			break
		}
		from := r.part[v]
		if r.load[from] <= limits[from] {
			// The machine is within its limit now. Its other samples stay.
			r.state[v] = locked
			continue
		}
		j := r.target(v)
		if r.load[j] >= limits[j] || !r.fitsMemory(v, j) || r.load[j]+r.l.weight[v] > limits[j] && r.l.weight[v] > 1 && r.load[j]+r.l.weight[v] >= r.load[from] {
			// No room there; try the vertex's next best machine later.
			r.leaveOut(v, j)
			r.enqueue(v)
			continue
		}
		r.carry(v, j)
		r.state[v] = locked
		for _, u := range r.touched {
			r.enqueue(u)
		}
		if moves++; moves%256 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	// The last moves were forced. Within the exact limits some of their loss can be won back.
	return r.makePasses(ctx)
}

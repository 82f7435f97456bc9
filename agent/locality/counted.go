package locality

// Counted are a job's sums since it was first seen, those that rates over time
// are made of.
type Counted struct {
	Bytes, LeftHost uint64
	Steps           []uint64 // by worker
	ByServer        []uint64 // bytes to and from it
	// Micros and Counts are the times of requests, as Latency.Bars returns them.
	Micros, Counts []uint64
}

// Counted returns the sums of now.
func (j *Job) Counted() Counted {
	j.mu.Lock()
	defer j.mu.Unlock()
	c := Counted{Bytes: j.totals.Bytes, LeftHost: j.totals.LeftHost, Steps: append([]uint64(nil), j.all.Steps...)}
	for _, row := range j.all.Pairs {
		for s, p := range row {
			c.ByServer = grown(c.ByServer, s)
			c.ByServer[s] += p.ToServer + p.ToWorker
		}
	}
	c.Micros, c.Counts = j.all.Latency.Bars()
	return c
}

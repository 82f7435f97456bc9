package counts

import "math"

// Rested counts bytes that passed between a worker and a server while nobody looked. The requests
// among them are estimated by the mean size of those that were seen, and the worker's steps, at
// its next one, by the timestamps that it has used since.
func (j *Locality) Rested(r Request, toServer bool, bytes uint64, leftHost bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.totals.Bytes += bytes
	if leftHost {
		j.totals.LeftHost += bytes
	}
	j.seconds.at(r.Time).bytes += bytes
	now, all := j.interval(r.Time), j.all.pair(r.Worker, r.Server)
	requests := uint64(0)
	if toServer {
		requests = uint64(math.Round(float64(bytes) * float64(all.Requests) / max(float64(all.ToServer), 1)))
		if r.Worker < len(j.progress) {
			j.progress[r.Worker].rested = true
		}
	}
	for _, in := range []*Interval{now, j.all} {
		p := in.pair(r.Worker, r.Server)
		p.addBytes(toServer, bytes)
		p.Requests += requests
		in.Bytes += bytes
		if leftHost {
			in.LeftHost += bytes
		}
	}
}

// Forget forgets the requests in flight from a worker to a server, whose answers may pass unseen
// from a time on, in nanoseconds since 1970.
func (j *Locality) Forget(worker, server int, from int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for range j.pending.forget(pair{int32(worker), int32(server)}) {
		j.noteAnswered(worker, from)
	}
}

// stepsPassed returns how many steps a request stands for that begins one: more than one where
// nobody has looked at those before it. The distance of the timestamps of two steps that follow
// each other is averaged with weight 1/4.
func (p *progress) stepsPassed(timestamp int32) uint64 {
	distance := float64(int64(timestamp) - int64(p.timestamp))
	rested := p.rested
	p.rested = false
	switch {
	case p.stepTime == 0 || rested && p.distance == 0:
		return 1
	case rested:
		return uint64(max(math.Round(distance/p.distance), 1))
	case p.distance == 0:
		p.distance = distance
	}
	p.distance += (distance - p.distance) / 4
	return 1
}

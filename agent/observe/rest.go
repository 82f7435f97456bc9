package observe

import (
	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/bpf"
)

// SetRest says which streams rest from a time on, in nanoseconds since 1970 (see
// bpf.Capture.Rest), and that they are watched for one part in of of the time: a request that is
// seen then stands for so many.
func (o *Observer) SetRest(from int64, of uint32, rests func(bpf.StreamID) bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.restFrom = from
	for id, s := range o.streams {
		if s.restOfBefore, s.restOf = s.restOf, 1; rests(id) {
			s.restOf = of
		}
	}
}

// EndRest says that a rest has ended that began at a time in nanoseconds since 1970. What was in
// flight then may have been answered unseen, so it is forgotten.
func (o *Observer) EndRest(began int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.streams {
		if s.restOf > 1 && !s.closed && s.sender != nil && s.receiver != nil && s.sender.role == roleWorker && s.sender.job == s.receiver.job {
			s.receiver.job.Sums.Forget(s.sender.index, s.receiver.index, began)
		}
	}
}

// rested counts the bytes that have passed on the stream in a rest.
func (o *Observer) rested(s *stream, r *bpf.Record) {
	bytes := r.Offset - min(s.rested, r.Offset)
	s.rested = r.Offset
	worker, server := s.sender, s.receiver
	if bytes == 0 || s.timing || s.twin || worker == nil || server == nil || worker.job != server.job {
		return
	}
	if worker.role == roleServer {
		worker, server = server, worker
	}
	if worker.role == roleWorker && server.role == roleServer {
		worker.job.Sums.Rested(counts.Request{Worker: worker.index, Server: server.index, Time: o.opts.Wall(r.Time)}, s.sender == worker, bytes, s.leavesHost())
	}
}

// standsFor returns the number of messages that one on the stream stands for.
func (o *Observer) standsFor(s *stream, at int64) uint64 {
	if at < o.restFrom {
		return uint64(max(s.restOfBefore, 1))
	}
	return uint64(max(s.restOf, 1))
}

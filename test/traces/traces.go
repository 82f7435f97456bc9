// Package traces makes recordings, in the format of psidecar record, of training that never ran over
// a network. Strategies that move keys are evaluated on them. [Wandering] and [Pruning] yield the
// uses of keys in the order in which workers would send them.
package traces

import (
	"fmt"

	"github.com/psidecar/psidecar/internal/recording"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// Job is the name of the job in a trace.
const Job = "trace:0"

// A Trace hands the uses of a job to each, in order; an error of each ends it. The
// Use is valid during the call.
type Trace func(each func(*recording.Use) error) error

// emitter turns workers' requests into uses, one for each server. Time is counted in
// requests.
type emitter struct {
	servers   int
	width     int // bytes of a value
	each      func(*recording.Use) error
	timestamp []int32 // of the next request, by worker
	nanos     int64
}

// newEmitter returns an emitter for a job without any requests yet. Its time begins
// above 0, which a recording takes for no time at all.
func newEmitter(workers, servers, width int, each func(*recording.Use) error) *emitter {
	return &emitter{servers: servers, width: width, each: each, timestamp: make([]int32, workers), nanos: 1}
}

// request emits a pull or a push of keys, which ascend. Bytes are those of a push's
// values; a pull's come with its answer.
func (e *emitter) request(worker int, push bool, keys []uint64) error {
	for len(keys) > 0 {
		// Keys ascend, so a server's are one run of them.
		server, ok := pslite.Owner(keys[0], e.servers)
		n := 1
		for n < len(keys) {
			if s, _ := pslite.Owner(keys[n], e.servers); s != server {
				break
			}
			n++
		}
		if !ok {
			return fmt.Errorf("key %d belongs to no server", keys[0])
		}
		u := &recording.Use{
			Job: Job, Worker: fmt.Sprintf("worker%d", worker), Server: fmt.Sprintf("server%d", server),
			UnixNanos: e.nanos, Timestamp: e.timestamp[worker], Push: push, Pull: !push, Keys: keys[:n],
		}
		if push {
			u.Bytes = uint64(n * e.width)
		}
		if err := e.each(u); err != nil {
			return err
		}
		keys = keys[n:]
	}
	// One timestamp for all parts of a request, as in PS-lite.
	e.timestamp[worker]++
	e.nanos += 1000
	return nil
}

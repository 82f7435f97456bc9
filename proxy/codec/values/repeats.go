package values

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/mapped"
	"github.com/psidecar/psidecar/proxy/route"
)

// repeats remembers what was sent lately, to recognize what PS_RESEND repeats. A
// repetition must not enter the residual again, and takes the bytes that the first
// took: whatever the server received of the first, it applies one of the two, and both
// are the same.
//
// It is part of a stream and guarded by its lock. sent and order have the same
// requests; bytes is the sum of their sections. The sections are in the stream's file
// if that has room.
type repeats struct {
	sent  map[exchange]*sent
	order []exchange // oldest first
	bytes int
	last  int32 // the highest timestamp of the job's own numbering
}

// exchange is what a request has in common with its repetitions and with no other
// request of its stream.
type exchange struct {
	timestamp int32
	push      bool
}

// sent is one request that went with a section.
type sent struct {
	sum     uint64 // of what the job sent
	section []byte
	extent  *mapped.Extent // where the section is; nil: in memory alone
}

// Bounds of what one stream remembers. PS-lite's resender gives up after ten
// repetitions, and workers have few requests in flight.
const (
	mostRepeats     = 1024
	mostRepeatBytes = 16 << 20
)

func newRepeats() repeats {
	return repeats{sent: map[exchange]*sent{}}
}

func exchangeOf(m *pslite.Meta) exchange { return exchange{m.Timestamp, m.Push} }

// sumOf returns a sum of a request's frames, which distinguishes a repetition from
// another process's request with the same timestamp. Of long frames only the ends and
// samples of what is between them count: hashing all of a dense push would cost more than
// compressing it. The ends alone do not suffice, as those of many gradients are zeros.
func (r *repeats) sumOf(frames [][]byte) uint64 {
	const ends, samples, sample = 4 << 10, 256, 64
	var h xxhash.Digest
	h.Reset()
	var size [8]byte
	for _, f := range frames {
		binary.LittleEndian.PutUint64(size[:], uint64(len(f)))
		h.Write(size[:])
		if len(f) > 2*ends+samples*sample {
			h.Write(f[:ends])
			between := f[ends : len(f)-ends]
			for i := range samples {
				h.Write(between[i*(len(between)/samples):][:sample])
			}
			f = f[len(f)-ends:]
		}
		h.Write(f)
	}
	return h.Sum64()
}

// verdict says what a request is.
type verdict int

const (
	isNew verdict = iota
	isRepeat
	isOther // of another process, which has taken the place of the one before
)

// judge looks a request up; sum is sumOf its frames. A connection's first request
// (fresh) may come from a new process with the old one's node id, whose timestamps
// begin again at 0.
func (r *repeats) judge(e exchange, sum uint64, fresh bool) (verdict, *sent) {
	if s := r.sent[e]; s != nil {
		if s.sum == sum {
			return isRepeat, s
		}
		return isOther, nil
	}
	// An earlier timestamp than any that is remembered is not a repetition, which would
	// be remembered.
	if fresh && e.timestamp < route.FirstOwn && e.timestamp < r.last {
		if oldest, ok := r.oldest(); ok && e.timestamp < oldest {
			return isOther, nil
		}
	}
	return isNew, nil
}

// oldest returns the timestamp of the oldest request of the job's own numbering that is
// remembered. Parts of requests that the proxy has split are numbered apart, and say
// nothing of the worker's next number.
func (r *repeats) oldest() (int32, bool) {
	for _, e := range r.order {
		if e.timestamp < route.FirstOwn {
			return e.timestamp, true
		}
	}
	return 0, false
}

// remember keeps a request's section, and reports whether it could: not if the section
// is too long or memory is used up. Requests without a section are remembered, too,
// since a repetition of these must not enter the residual either.
func (r *repeats) remember(e exchange, sum uint64, section []byte, st *stream) bool {
	if e.timestamp < route.FirstOwn {
		r.last = max(r.last, e.timestamp)
	}
	if len(section) > mostRepeatBytes {
		return false
	}
	for len(r.order) >= mostRepeats || r.bytes+len(section) > mostRepeatBytes {
		r.forgetOldest(st)
	}
	push := uint32(0)
	if e.push {
		push = 1
	}
	st.order++
	t := mapped.Tag{A: st.order, C: uint32(e.timestamp), D: push, Sum: sum}
	s := &sent{sum: sum, extent: st.allocate(kindSent, t, len(section))}
	switch {
	// The file's memory is the only copy: it is read when the request is repeated.
	case s.extent != nil:
		s.section = s.extent.Bytes()
	case !st.budget.reserve(len(section)):
		return false
	default:
		s.section = make([]byte, len(section))
	}
	copy(s.section, section)
	r.sent[e] = s
	r.order = append(r.order, e)
	r.bytes += len(section)
	return true
}

func (r *repeats) forgetOldest(st *stream) {
	e := r.order[0]
	r.order = r.order[1:]
	r.bytes -= len(r.sent[e].section)
	r.drop(r.sent[e], st)
	delete(r.sent, e)
}

func (r *repeats) drop(s *sent, st *stream) {
	if s.extent == nil {
		st.budget.give(len(s.section))
	} else if st.file != nil {
		st.file.Free(s.extent)
	}
}

// areOver reports whether a request shows that none of those remembered is repeated any more: as
// many requests as are remembered at most came after the last of them.
func (r *repeats) areOver(e exchange) bool {
	return len(r.order) > 0 && e.timestamp < route.FirstOwn && e.timestamp-r.last > mostRepeats
}

// clear forgets everything.
func (r *repeats) clear(st *stream) {
	for _, s := range r.sent {
		r.drop(s, st)
	}
	*r = newRepeats()
}

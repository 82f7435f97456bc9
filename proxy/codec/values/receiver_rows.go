package values

import (
	"fmt"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/rows"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
)

// readRows reads a part of rows, an answer's activations, and keeps their mask: the
// gradients that the worker pushes for them go only at the positions at which
// activations came (DCT-MP, Algorithm 2).
//
// It runs in the worker's proxy, which is also the one that encodes that push, so the
// mask is never sent. It reads r.keys and r.frames of the message being decoded.
func (r *Receiver) readRows(src, out []byte) (n int, rest []byte, err error) {
	m, total, src, err := readRowsKeys(src, r.keys.Len(), len(out))
	if err != nil {
		return 0, nil, err
	}
	open, src, err := readOpen(src, total)
	if err != nil {
		return 0, nil, err
	}
	if len(src) == 0 || part(src[0]) != partSparse && part(src[0]) != partHalvedSparse {
		return 0, nil, fmt.Errorf("%w: rows without a sparse part", ErrCorrupt)
	}
	if n, rest, err = r.part(src, out); err != nil {
		return 0, nil, err
	}
	if r.vector.N != total {
		return 0, nil, fmt.Errorf("%w: %d numbers of rows that have %d", ErrCorrupt, r.vector.N, total)
	}
	// The positions that were sent, and all of the rows that are open. If there is no
	// pull, since the answer was repeated, the mask is dropped and the push passes
	// whole.
	if pull := r.askedFor(); pull.pull != nil {
		m.kind = r.vector.Kind
		m.bits = append(sparse.Mask(nil), r.vector.Mask...)
		for _, o := range open {
			m.bits.SetRun(o.From, o.To-o.From)
		}
		pull.stream.mu.Lock()
		if !pull.stream.pairs.attach(pull.pull, m) {
			r.codec.counts.why(ReasonMemory)
		}
		pull.stream.mu.Unlock()
	}
	return n, rest, nil
}

// askedFor returns the pull that the message answers; asked{} if none is known. It is
// looked up once for each message, since the look-up removes it, and all parts of
// rows of the message attach their masks to it.
func (r *Receiver) askedFor() asked {
	if !r.sought {
		r.sought = true
		if m := r.message(); m != nil {
			r.answers, _ = r.codec.asks.takePull(askingOf(r.link.Dialer, m))
		}
	}
	return r.answers
}

// message decodes the meta of the frames that are being received; nil if it cannot be
// read.
func (r *Receiver) message() *pslite.Message {
	if _, err := r.decoded.DecodeMeta(&r.detector, r.frames); err != nil {
		return nil
	}
	return &r.decoded
}

// notePull records a pull whose sender has a rule for activations; asks says that the
// answer may come by rows.
func (r *Receiver) notePull(frames [][]byte, asks bool) {
	r.frames = frames
	m := r.message()
	if m == nil || len(m.Data) == 0 {
		return
	}
	if r.codec.permits.note(askingOf(r.link.Dialer, m), r.link.ID, asks) {
		r.codec.counts.why(ReasonAlike)
	}
}

// readRowsKeys reads which keys a part of rows is of, at most most, and how many values
// they have, at most bytes bytes in all even if the values have 16 bits.
func readRowsKeys(src []byte, most, bytes int) (m rowsMask, total int, rest []byte, err error) {
	width := 0
	for _, v := range []*int{&m.first, &m.keys, &width} {
		if *v, src, err = uvarint(src); err != nil {
			return m, 0, nil, err
		}
	}
	if m.keys == 0 || m.keys > most || m.first > most-m.keys {
		return m, 0, nil, fmt.Errorf("%w: rows of %d keys from number %d on, where there are %d", ErrCorrupt, m.keys, m.first, most)
	}
	// The kind of the values comes later, in the sparse part: the smallest kind gives
	// the most values.
	least := element.BFloat16.Size()
	if width > 0 {
		if m.width = width - 1; m.width > bytes/least/m.keys {
			return m, 0, nil, fmt.Errorf("%w: rows of %d keys with %d values each where %d bytes are wanted", ErrCorrupt, m.keys, m.width, bytes)
		}
		return m, m.keys * m.width, src, nil
	}
	if m.keys > len(src) {
		return m, 0, nil, fmt.Errorf("%w: rows of %d keys in %d bytes", ErrCorrupt, m.keys, len(src))
	}
	m.ends = make([]int, m.keys)
	for i := range m.ends {
		if width, src, err = uvarint(src); err != nil {
			return m, 0, nil, err
		}
		if total += width; total > bytes/least {
			return m, 0, nil, fmt.Errorf("%w: rows of %d values where %d bytes are wanted", ErrCorrupt, total, bytes)
		}
		m.ends[i] = total
	}
	return m, total, src, nil
}

// readOpen reads which of total values belong to open rows: spans as pairs of gap and
// length, in ascending order, so that the running position only grows and one
// comparison with total bounds both ends.
func readOpen(src []byte, total int) (open []rows.Span, rest []byte, err error) {
	count, src, err := uvarint(src)
	if err != nil {
		return nil, nil, err
	}
	// Each takes two bytes at least.
	if count > len(src)/2 {
		return nil, nil, fmt.Errorf("%w: %d open rows in %d bytes", ErrCorrupt, count, len(src))
	}
	at := 0
	for range count {
		var o rows.Span
		for _, v := range []*int{&o.From, &o.To} {
			step := 0
			if step, src, err = uvarint(src); err != nil {
				return nil, nil, err
			}
			if at += step; at > total {
				return nil, nil, fmt.Errorf("%w: open rows beyond %d values", ErrCorrupt, total)
			}
			*v = at
		}
		open = append(open, o)
	}
	return open, src, nil
}

package recording

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/zstd"
)

// A Writer writes a recording. It is not safe for concurrent use. After an error it writes
// nothing more and returns that error from every call.
type Writer struct {
	out    *zstd.Encoder
	totals Totals
	nodes  map[[2]string]uint64 // numbers by job and name
	oneIn  map[string]uint32    // by job, as last written
	lists  map[uint64]list      // by hash; two lists with one hash displace each other
	next   uint64               // number of the next list
	keys   int                  // keys in lists, at most maxListKeys unless a single list has more
	last   int64                // time of the last use
	entry  []byte
	err    error
}

// A list is a list of keys that the reader still has.
type list struct {
	number uint64
	keys   []uint64
}

// NewWriter begins a recording with its header. The caller closes out after Close.
func NewWriter(out io.Writer, h Header) (*Writer, error) {
	if _, err := out.Write(append([]byte(magic), version)); err != nil {
		return nil, fmt.Errorf("beginning the recording: %w", err)
	}
	// Fast rather than small, and in one thread: recording must not take the job's processors.
	// The checksum shows damage.
	z, err := zstd.NewWriter(out, zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(true), zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return nil, fmt.Errorf("beginning the recording: %w", err)
	}
	w := &Writer{out: z, nodes: map[[2]string]uint64{}, oneIn: map[string]uint32{}, lists: map[uint64]list{}}
	w.json('H', h)
	return w, w.err
}

// json writes an entry in JSON.
func (w *Writer) json(kind byte, v any) {
	text, err := json.Marshal(v)
	if err != nil && w.err == nil {
		w.err = err
	}
	w.writeEntry(kind, text)
}

// writeEntry writes an entry. After an error nothing more is written.
func (w *Writer) writeEntry(kind byte, body []byte) {
	if w.err != nil {
		return
	}
	head := binary.AppendUvarint([]byte{kind}, uint64(len(body)))
	if _, w.err = w.out.Write(head); w.err == nil {
		_, w.err = w.out.Write(body)
	}
}

// Add writes a use, and before it the entries that it needs: its nodes, its sampling if that
// changed, its list if it is new. It copies the keys and retains nothing of u.
func (w *Writer) Add(u *Use) error {
	worker, server := w.node(u.Job, u.Worker), w.node(u.Job, u.Server)
	w.sampled(u.Job, max(u.OneIn, 1))
	list := w.list(u.Keys)
	w.entry = appendUse(w.entry[:0], u, worker, server, list, u.UnixNanos-w.last)
	w.writeEntry('U', w.entry)
	w.last = u.UnixNanos
	w.totals.Uses++
	w.totals.Keys += uint64(len(u.Keys))
	w.totals.Bytes += u.Bytes
	return w.err
}

// node returns the number of a node, which is written if it is new. Numbers are never
// forgotten.
func (w *Writer) node(job, name string) uint64 {
	key := [2]string{job, name}
	number, ok := w.nodes[key]
	if !ok {
		number = uint64(len(w.nodes))
		w.nodes[key] = number
		w.writeEntry('N', append(binary.AppendUvarint(nil, number), job+"\t"+name...))
	}
	return number
}

// sampled writes the job's sampling if it has changed.
func (w *Writer) sampled(job string, oneIn uint32) {
	if before, ok := w.oneIn[job]; ok && before == oneIn {
		return
	}
	w.oneIn[job] = oneIn
	w.writeEntry('S', append(binary.AppendUvarint(nil, uint64(oneIn)), job...))
}

// list returns the number of a list of keys, which is written unless the reader still has it.
// When the bounds are reached, both sides forget all lists at once: no bookkeeping of ages is
// needed to stay in agreement.
func (w *Writer) list(keys []uint64) uint64 {
	var d xxhash.Digest
	d.Reset()
	w.entry = w.entry[:0]
	for _, k := range keys {
		w.entry = binary.LittleEndian.AppendUint64(w.entry, k)
	}
	hash := xxhash.Sum64(w.entry)
	// Compared in full, as a hash alone could make two lists one.
	if l, ok := w.lists[hash]; ok && slices.Equal(l.keys, keys) {
		return l.number
	}
	if len(w.lists) >= maxLists || w.keys+len(keys) > maxListKeys {
		clear(w.lists)
		w.keys, w.next = 0, 0
		w.writeEntry('F', nil)
	}
	w.entry = binary.AppendUvarint(w.entry[:0], uint64(len(keys)))
	before := uint64(0)
	for _, k := range keys {
		w.entry = binary.AppendVarint(w.entry, int64(k-before))
		before = k
	}
	w.writeEntry('K', w.entry)
	l := list{w.next, slices.Clone(keys)}
	w.lists[hash] = l
	w.next++
	w.keys += len(keys)
	w.totals.Lists++
	return l.number
}

// Flush makes what was written so far readable, even if the process is killed. It costs some
// compression.
func (w *Writer) Flush() error {
	if w.err == nil {
		w.err = w.out.Flush()
	}
	return w.err
}

// Close writes the end of the recording and returns its totals.
func (w *Writer) Close(endedNanos int64, dropped uint64) (Totals, error) {
	w.totals.EndedNanos, w.totals.Dropped = endedNanos, dropped
	w.json('E', w.totals)
	// Closed also after an error, which releases the encoder.
	if err := w.out.Close(); w.err == nil {
		w.err = err
	}
	if w.err != nil {
		return w.totals, fmt.Errorf("writing the recording: %w", w.err)
	}
	return w.totals, nil
}

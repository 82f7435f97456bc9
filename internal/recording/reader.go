package recording

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// Read reads a recording and passes each use to each; the use and its slices are valid during
// the call only. An error names the damaged entry, or is ErrCutOff, after everything that could
// be read. An error of each ends the reading.
func Read(in io.Reader, each func(*Use) error) (Header, Totals, error) {
	var head [len(magic) + 1]byte
	if _, err := io.ReadFull(in, head[:]); err != nil || string(head[:len(magic)]) != magic {
		return Header{}, Totals{}, errors.New("not a psidecar recording: it does not begin with " + magic)
	}
	// The version is outside the compressed part, so that a later one may compress differently.
	if v := head[len(magic)]; v < 1 || v > version {
		return Header{}, Totals{}, fmt.Errorf("recording of version %d; this psidecar reads versions 1 to %d", v, version)
	}
	// Bounded, because the file may come from anybody: its frame could otherwise ask for a
	// window of gigabytes.
	z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
	if err != nil {
		return Header{}, Totals{}, fmt.Errorf("reading the recording: %w", err)
	}
	defer z.Close()
	r := &reader{in: bufio.NewReaderSize(z, 1<<16), each: each, oneIn: map[string]uint32{}}
	for !r.ended {
		if err := r.entry(); err != nil {
			return r.header, r.totals, err
		}
		r.count++
	}
	if _, err := r.in.ReadByte(); err != io.EOF { // reads the checksum
		if err == nil {
			err = errors.New("trailing data after the end")
		}
		return r.header, r.totals, fmt.Errorf("reading the recording's end: %w", err)
	}
	return r.header, r.totals, nil
}

// reader is the state of decoding: what the entries so far have defined.
type reader struct {
	in     *bufio.Reader
	each   func(*Use) error
	header Header
	totals Totals // counted while reading; must equal those of the end entry
	count  int    // entries so far
	ended  bool
	nodes  [][2]string       // job and name, by number
	oneIn  map[string]uint32 // by job
	lists  [][]uint64        // by number
	keys   int               // of all lists
	last   int64             // time of the last use
	body   []byte            // of the current entry; reused
	use    Use
}

// entry reads one entry. A stream that ends within one was cut off.
func (r *reader) entry() error {
	kind, err := r.in.ReadByte()
	if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
		return ErrCutOff
	}
	if err != nil {
		return wrap(r.count, 0, err)
	}
	size, err := binary.ReadUvarint(r.in)
	if err != nil {
		return ErrCutOff
	}
	if size > maxEntry {
		return wrap(r.count, kind, fmt.Errorf("%d bytes are more than an entry may have", size))
	}
	r.body = r.body[:0]
	for uint64(len(r.body)) < size { // grows with what is read, not with what size claims
		n := min(size-uint64(len(r.body)), 1<<16)
		at := len(r.body)
		r.body = append(r.body, make([]byte, n)...)
		if _, err := io.ReadFull(r.in, r.body[at:]); err != nil {
			return ErrCutOff
		}
	}
	if err := r.readEntry(kind); err != nil {
		return wrap(r.count, kind, err)
	}
	return nil
}

// readEntry decodes the body of an entry.
func (r *reader) readEntry(kind byte) error {
	c := &cursor{b: r.body}
	switch kind {
	case 'H':
		return json.Unmarshal(r.body, &r.header)
	case 'N':
		// Numbers are redundant, as nodes come in order; a difference shows a lost entry.
		number := c.uvarint()
		job, name, ok := strings.Cut(string(c.b), "\t")
		if c.err != nil || !ok || number != uint64(len(r.nodes)) {
			return errors.New("not a node")
		}
		r.nodes = append(r.nodes, [2]string{job, name})
		return nil
	case 'K':
		return r.takeList(c)
	case 'S':
		return r.takeSampling(c)
	case 'F':
		// The writer forgets its lists when they have become too many, and numbers them from 0
		// again.
		r.lists, r.keys = nil, 0
		return nil
	case 'U':
		return r.takeUse(c)
	case 'E':
		return r.takeEnd()
	}
	return errors.New("an entry of no known kind")
}

// takeList reads a list of keys, each as the difference to the one before.
func (r *reader) takeList(c *cursor) error {
	// Each key takes a byte at least, so a number above the body's length is damage, and is
	// refused before memory is allocated for it.
	n := c.uvarint()
	if n > uint64(len(c.b)) || len(r.lists) >= maxLists || r.keys > 0 && uint64(r.keys)+n > maxListKeys {
		return errors.New("not a list of keys, or more of them than a writer leaves")
	}
	r.keys += int(n)
	// Differences wrap around: keys that descend have negative ones, and 64-bit arithmetic
	// gives the key all the same.
	keys, before := make([]uint64, n), uint64(0)
	for i := range keys {
		before += uint64(c.varint())
		keys[i] = before
	}
	r.lists = append(r.lists, keys)
	r.totals.Lists++
	return c.err
}

// takeSampling reads from here on how many requests a use of the job stands for.
func (r *reader) takeSampling(c *cursor) error {
	oneIn := c.uvarint()
	if c.err != nil || oneIn == 0 || oneIn > math.MaxUint32 || len(r.oneIn) > maxEntry>>10 {
		return errors.New("not a sampling")
	}
	r.oneIn[string(c.b)] = uint32(oneIn)
	return nil
}

// oneInOf returns how many requests a use of the job stands for.
func (r *reader) oneInOf(job string) uint32 {
	if n, ok := r.oneIn[job]; ok {
		return n
	}
	return max(r.header.SampledOneIn, 1)
}

// takeUse reads a use and passes it on. Its fields are those of appendUse.
func (r *reader) takeUse(c *cursor) error {
	// Checked at once: all three are indexes that come from the file.
	worker, server, list, flags := c.uvarint(), c.uvarint(), c.uvarint(), c.byte()
	if c.err != nil || max(worker, server) >= uint64(len(r.nodes)) || list >= uint64(len(r.lists)) {
		return errors.New("a use of a node or list that is not there")
	}
	r.last += c.varint()
	r.use = Use{
		Job: r.nodes[worker][0], Worker: r.nodes[worker][1], Server: r.nodes[server][1], UnixNanos: r.last,
		App: int32(c.varint()), Customer: int32(c.varint()), Timestamp: int32(c.varint()),
		Push: flags&flagPush != 0, Pull: flags&flagPull != 0, Answer: flags&flagAnswer != 0,
		Keys: r.lists[list], Bytes: c.uvarint(), Lens: r.use.Lens[:0], OneIn: r.oneInOf(r.nodes[worker][0]),
	}
	if flags&flagLens == 0 {
		r.use.Lens = nil
	} else {
		for range r.use.Keys {
			r.use.Lens = append(r.use.Lens, int32(c.varint()))
		}
	}
	if c.err != nil {
		return c.err
	}
	r.totals.Uses++
	r.totals.Keys += uint64(len(r.use.Keys))
	r.totals.Bytes += r.use.Bytes
	return r.each(&r.use)
}

// takeEnd compares the totals of the writer with what was read, which detects entries that are
// missing or duplicated.
func (r *reader) takeEnd() error {
	var end Totals
	if err := json.Unmarshal(r.body, &end); err != nil {
		return err
	}
	// Two figures are known to the writer alone.
	counted := r.totals
	counted.Dropped, counted.EndedNanos = end.Dropped, end.EndedNanos
	if counted != end {
		return fmt.Errorf("the header says %+v, but read %+v", end, counted)
	}
	r.totals, r.ended = end, true
	return nil
}

package values

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/threshold"
)

// What waits outlives an orderly end of the proxy in a file, for the proxy after
// it: a magic number, streams by encoding/gob, and a CRC-32C of all before it. The
// file is read once, and only on the machine that wrote it.
const keptMagic = "psidVAL1"

// kept are all streams.
type kept struct{ Streams []keptStream }

type keptStream struct {
	Origin, Node  string
	Server        netip.AddrPort
	App, Customer int32
	Dense         []keptDense
	Narrow        []keptNarrow
	Sent          []keptSent // the oldest first
	Last          int32
}

type keptDense struct {
	Key      uint64
	Kind     byte
	Pulled   bool
	Residual []byte
}

type keptNarrow struct {
	First, Last uint64
	Kind        byte
	Keys        []uint64
	Places      []uint32 // where a key's values begin
	Widths      []uint32 // and whether it was pulled, as in a cell
	Residual    []byte
}

type keptSent struct {
	Timestamp int32
	Push      bool
	Sum       uint64
	Section   []byte
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Save writes what waits of all workers' pushes to a file, for [Codec.Restore] of
// the next proxy, and reports how many streams have any. Without any there is no
// file. No link may be in use any more.
func (c *Codec) Save(path string) (streams int, err error) {
	var all kept
	for o, st := range c.streamsOf("", "") {
		st.mu.Lock()
		if waits, _ := st.residual(); waits > 0 {
			all.Streams = append(all.Streams, st.keep(o))
		}
		st.mu.Unlock()
	}
	if len(all.Streams) == 0 {
		return 0, nil
	}
	if err := writeKept(path, &all); err != nil {
		return 0, fmt.Errorf("keeping what waits of pushes for the next proxy: %w", err)
	}
	return len(all.Streams), nil
}

func writeKept(path string, all *kept) (err error) {
	temporary := path + ".new"
	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err == nil {
			err = os.Rename(temporary, path)
		} else {
			err = errors.Join(err, os.Remove(temporary))
		}
	}()
	buffered := bufio.NewWriterSize(f, 1<<20)
	sum := crc32.New(castagnoli)
	w := io.MultiWriter(buffered, sum)
	if _, err := io.WriteString(w, keptMagic); err != nil {
		return err
	}
	if err := gob.NewEncoder(w).Encode(all); err != nil {
		return err
	}
	if err := binary.Write(buffered, binary.LittleEndian, sum.Sum32()); err != nil {
		return err
	}
	return buffered.Flush()
}

// keep returns what is kept of a stream; st.mu is locked.
func (s *stream) keep(o owner) keptStream {
	k := keptStream{Origin: o.origin, Node: o.node, Server: o.server, App: o.app, Customer: o.customer, Last: s.repeats.last}
	for key, l := range s.dense {
		k.Dense = append(k.Dense, keptDense{key, byte(l.Kind()), l.pulled, l.AppendResidual(nil)})
	}
	for id, l := range s.narrow {
		n := keptNarrow{First: id.First, Last: id.Last, Kind: byte(id.kind), Residual: l.AppendResidual(nil)}
		for _, c := range l.index.cells {
			if c.place != 0 {
				n.Keys, n.Places, n.Widths = append(n.Keys, c.key), append(n.Places, c.place), append(n.Widths, c.width)
			}
		}
		k.Narrow = append(k.Narrow, n)
	}
	for _, e := range s.repeats.order {
		sent := s.repeats.sent[e]
		k.Sent = append(k.Sent, keptSent{e.timestamp, e.push, sent.sum, sent.section})
	}
	return k
}

// Restore takes up what the proxy before this one saved, and removes the file. It
// is to be called before there are links, and reports how many streams there
// were. A file that cannot be used is set aside as path.damaged, and what it held
// is lost.
func (c *Codec) Restore(path string) (streams int, err error) {
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("what the proxy before this one left of pushes: %w", err)
	}
	restored, err := c.parseKept(text)
	if err != nil {
		return 0, errors.Join(fmt.Errorf("what the proxy before this one left of pushes is lost: %s: %w; set aside as %s.damaged", path, err, filepath.Base(path)),
			os.Rename(path, path+".damaged"))
	}
	// Before it counts: who finds it again must not add it up twice.
	if err := os.Remove(path); err != nil {
		return 0, fmt.Errorf("what the proxy before this one left of pushes is not taken up: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.Copy(c.streams, restored)
	return len(restored), nil
}

// errKept says that a file is not what Save wrote.
var errKept = errors.New("it is damaged, or of another version")

func (c *Codec) parseKept(text []byte) (map[owner]*stream, error) {
	if len(text) < len(keptMagic)+4 || string(text[:len(keptMagic)]) != keptMagic {
		return nil, errKept
	}
	body := text[:len(text)-4]
	if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(text[len(body):]) {
		return nil, fmt.Errorf("%w: its checksum does not fit", errKept)
	}
	var all kept
	if err := gob.NewDecoder(bytes.NewReader(body[len(keptMagic):])).Decode(&all); err != nil {
		return nil, fmt.Errorf("%w: %w", errKept, err)
	}
	streams := map[owner]*stream{}
	for i := range all.Streams {
		k := &all.Streams[i]
		st := newStream(&c.budget, c.counts)
		st.idle = c.now()
		if err := st.takeUp(k); err != nil {
			return nil, fmt.Errorf("%w: %w", errKept, err)
		}
		streams[owner{k.Origin, k.Node, k.Server, k.App, k.Customer}] = st
	}
	return streams, nil
}

// takeUp is the reverse of keep, for a new stream. Layers that --codec-memory has
// no room for are an error: their values would be lost.
func (s *stream) takeUp(k *keptStream) error {
	for _, d := range k.Dense {
		l, err := threshold.RestoreLayer(element.Kind(d.Kind), d.Residual, noRule.config(d.Key))
		if err != nil {
			return err
		}
		if !s.budget.take(l.Bytes()) {
			return errors.New("--codec-memory has no room for it")
		}
		s.dense[d.Key] = &denseLayer{Layer: l, pulled: d.Pulled}
	}
	for _, n := range k.Narrow {
		l, err := threshold.RestoreLayer(element.Kind(n.Kind), n.Residual, noRule.config(n.First))
		if err != nil {
			return err
		}
		x, err := restoreIndex(n.Keys, n.Places, n.Widths)
		if err != nil {
			return err
		}
		if x.values != l.Len() {
			return fmt.Errorf("%d values of keys in a layer of %d", x.values, l.Len())
		}
		if !s.budget.take(l.Bytes() + x.bytes()) {
			return errors.New("--codec-memory has no room for it")
		}
		s.narrow[layerID{Range{n.First, n.Last}, element.Kind(n.Kind)}] = &narrowLayer{Layer: l, index: x}
	}
	for _, sent := range k.Sent {
		s.repeats.remember(exchange{sent.Timestamp, sent.Push}, sent.Sum, sent.Section, s.budget)
	}
	s.repeats.last = k.Last
	return nil
}

// restoreIndex makes the index that gives these keys their places again.
func restoreIndex(keys []uint64, places, widths []uint32) (*index, error) {
	if len(places) != len(keys) || len(widths) != len(keys) {
		return nil, fmt.Errorf("%d keys with %d places and %d widths", len(keys), len(places), len(widths))
	}
	order := make([]int, len(keys))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return int(int64(places[a]) - int64(places[b])) })
	x := newIndex()
	for _, i := range order {
		width := int(widths[i] &^ pulledBit)
		if int(places[i]) != x.values+1 || x.values > math.MaxInt32-width || x.at(keys[i]).place != 0 {
			return nil, fmt.Errorf("key %d at place %d", keys[i], places[i])
		}
		x.add(keys[i], width)
		if widths[i]&pulledBit != 0 {
			x.at(keys[i]).width |= pulledBit
			x.unpulled--
		}
	}
	return x, nil
}

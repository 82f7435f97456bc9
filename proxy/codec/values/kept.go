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
	"net/netip"
	"os"
	"path/filepath"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/threshold"
)

// Residuals that are in no stream's own file, because there is no folder or no room
// in it, survive an orderly end of the proxy in one file for the next proxy: a magic
// number, streams by encoding/gob, and a CRC-32C of all before it. The file is read
// once, and only on the machine that wrote it. The same structures carry a stream's
// state when it is taken over from its own file, or moves to another stream.
const keptMagic = "psidVAL1"

// kept is all streams of such a file.
type kept struct{ Streams []keptStream }

// keptStream is the saved state of a stream: its owner, residuals, and recent
// requests for the case of a repetition.
type keptStream struct {
	Origin, Node  string
	Server        netip.AddrPort
	App, Customer int32
	Command       int64 // see commands.whose
	Dense         []keptDense
	Narrow        []keptNarrow
	Sent          []keptSent // the oldest first
	Last          int32
}

// keptDense is a layer that is one key.
type keptDense struct {
	Key      uint64
	Kind     byte
	Residual []byte
	Age      int // pushes so far
}

// keptNarrow is a layer of keys of few values. Keys, Places and Widths have the same
// length; Places are counted from 1, in numbers of Residual.
type keptNarrow struct {
	First, Last uint64
	Kind        byte
	Keys        []uint64
	Places      []uint32 // where a key's values begin
	Widths      []uint32 // as in a cell
	Residual    []byte
	Age         int
}

// keptSent is a request that went with a section, see sent.
type keptSent struct {
	Timestamp int32
	Push      bool
	Sum       uint64
	Section   []byte
	Order     uint64
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Save leaves the residuals of all workers' pushes to the next proxy, for its
// [Codec.Restore]. Those in streams' files stay there; the others are written to
// path. It returns how many streams have others, even if there is no path to write
// them to, which is an error. No link may be in use any more.
func (c *Codec) Save(path string) (streams int, err error) {
	var all kept
	for o, st := range c.streamsOf("", "") {
		st.mu.Lock()
		// The file's lock is released with it: from here on the next proxy may have it.
		err = errors.Join(err, st.release())
		if waits, _ := st.residual(); waits > 0 {
			all.Streams = append(all.Streams, st.keptState(o))
		}
		st.mu.Unlock()
	}
	if len(all.Streams) == 0 {
		return 0, err
	}
	if path == "" {
		return len(all.Streams), errors.Join(err, errors.New("no directory for it"))
	}
	// A file that could not be released is no reason to lose the others' residuals.
	if failed := writeKept(path, &all); failed != nil {
		return 0, errors.Join(err, fmt.Errorf("saving residuals for the next proxy: %w", failed))
	}
	return len(all.Streams), err
}

// writeKept writes the file, through a buffer that the checksum is computed beside.
func writeKept(path string, all *kept) (err error) {
	// Renamed when it is complete, so that the next proxy finds a whole file or none.
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

// keptState returns the kept state of a stream. The caller holds st.mu.
func (s *stream) keptState(o owner) keptStream {
	k := keptStream{Origin: o.origin, Node: o.node, Server: o.server, App: o.app, Customer: o.customer, Command: s.commands.whose(), Last: s.repeats.last}
	for key, l := range s.dense {
		k.Dense = append(k.Dense, keptDense{key, byte(l.Kind()), l.AppendResidual(nil), l.Age()})
	}
	for id, l := range s.narrow {
		n := keptNarrow{First: id.First, Last: id.Last, Kind: byte(id.kind), Residual: l.AppendResidual(nil), Age: l.Age()}
		for _, c := range l.index.cells {
			if c.place != 0 {
				n.Keys, n.Places, n.Widths = append(n.Keys, c.key), append(n.Places, c.place), append(n.Widths, c.width)
			}
		}
		k.Narrow = append(k.Narrow, n)
	}
	// In order of arrival, so that the next proxy, too, forgets the oldest first.
	// Order is left out: it sorts extents of a stream's file, and these requests are
	// in none.
	for _, e := range s.repeats.order {
		sent := s.repeats.sent[e]
		k.Sent = append(k.Sent, keptSent{Timestamp: e.timestamp, Push: e.push, Sum: sent.sum, Section: sent.section})
	}
	return k
}

// Restore takes over what earlier proxies have left, killed ones too, in the folder
// and in the file of Save, and returns how many streams there were. Such a proxy may
// end after this one has begun, so the residuals are added to those that this one
// has. A file that cannot be used is renamed to .damaged, and its residuals are lost.
func (c *Codec) Restore(path string) (streams int, err error) {
	c.mu.Lock()
	idle := c.tidy()
	c.mu.Unlock()
	c.abandon(idle)
	streams, err = c.takeOver("")
	if path == "" {
		return streams, err
	}
	saved, failed := c.restoreSaved(path)
	return streams + saved, errors.Join(err, failed)
}

// restoreSaved takes over what Save wrote, and removes the file.
func (c *Codec) restoreSaved(path string) (streams int, err error) {
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("residuals of the previous proxy: %w", err)
	}
	all, err := parseKept(text)
	if err != nil {
		return 0, errors.Join(fmt.Errorf("residuals of the previous proxy are lost: %s: %w; set aside as %s.damaged", path, err, filepath.Base(path)),
			os.Rename(path, path+".damaged"))
	}
	// The file is removed before its content counts: a proxy that found it again would
	// add everything twice, which is worse than losing it.
	if err := os.Remove(path); err != nil {
		return 0, fmt.Errorf("cannot restore the residuals of the previous proxy: %w", err)
	}
	for i := range all.Streams {
		k := &all.Streams[i]
		st := c.join(owner{k.Origin, k.Node, k.Server, k.App, k.Customer}, true)
		if st == nil {
			c.counts.why(ReasonStreams)
			err = errors.Join(err, fmt.Errorf("residuals for %s are lost: too many workers and servers", k.Server))
			continue
		}
		err = errors.Join(err, st.adoptKept(k, [2]uint64{}, func() error { return nil }))
		c.leave(st)
		c.taken.Add(1)
	}
	return len(all.Streams), err
}

// errKept says that a file is not what Save wrote.
var errKept = errors.New("it is damaged, or of another version")

// parseKept checks a file and decodes it. The checksum comes first: gob must not see
// anything else than what gob wrote.
func parseKept(text []byte) (*kept, error) {
	if len(text) < len(keptMagic)+4 || string(text[:len(keptMagic)]) != keptMagic {
		return nil, errKept
	}
	body := text[:len(text)-4]
	if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(text[len(body):]) {
		return nil, fmt.Errorf("%w: its checksum does not fit", errKept)
	}
	all := &kept{}
	if err := gob.NewDecoder(bytes.NewReader(body[len(keptMagic):])).Decode(all); err != nil {
		return nil, fmt.Errorf("%w: %w", errKept, err)
	}
	return all, nil
}

// takeUp adds what was kept of a stream to it and returns how many layers had to be
// dropped. Of repeated requests it takes only those that this proxy has not seen
// itself: its own record is the newer one. The caller holds s.mu.
func (s *stream) takeUp(k *keptStream) (lost int) {
	s.commands.belongs(k.Command)
	for i := range k.Dense {
		if !s.takeUpDense(&k.Dense[i]) {
			lost++
			s.counts.why(ReasonMemory)
		}
	}
	for i := range k.Narrow {
		if !s.takeUpNarrow(&k.Narrow[i]) {
			lost++
			s.counts.why(ReasonMemory)
		}
	}
	for _, sent := range k.Sent {
		if e := (exchange{sent.Timestamp, sent.Push}); s.repeats.sent[e] == nil {
			s.repeats.remember(e, sent.Sum, sent.Section, s)
		}
	}
	s.repeats.last = max(s.repeats.last, k.Last)
	return lost
}

// takeUpDense adds a dense layer's residual to the stream's, which it makes if need
// be. Adding is right whether or not the worker has pushed through this proxy
// already: residuals are sums. It reports false if there is no memory or the key has
// another length now.
func (s *stream) takeUpDense(d *keptDense) bool {
	kind := element.Kind(d.Kind)
	if !kind.Valid() {
		return false
	}
	l, why := s.denseOf(d.Key, &piece{kind: kind, width: len(d.Residual) / threshold.ResidualSize(kind)}, noRule)
	if why != "" {
		return false
	}
	l.SetAge(max(l.Age(), d.Age))
	s.save(l.Layer, l.extent, nil)
	return l.AddResidual(nil, d.Residual) == nil
}

// takeUpNarrow adds a narrow layer's residual to the stream's, key by key, since the
// same keys may have other places here. It reports false if memory does not suffice or
// a key has another width now.
func (s *stream) takeUpNarrow(n *keptNarrow) bool {
	kind := element.Kind(n.Kind)
	if !kind.Valid() || len(n.Places) != len(n.Keys) || len(n.Widths) != len(n.Keys) {
		return false
	}
	l, why := s.makeNarrow(&piece{kind: kind, span: &span{Range: Range{n.First, n.Last}}}, noRule)
	if why != "" {
		return false
	}
	// Until a push brings the rule that holds, the layer sends everything.
	follow(l.Layer, &l.rule, noRule, n.First)
	size := threshold.ResidualSize(kind)
	var at []uint32
	var values []byte
	// Keys that were added have places from then on, also where the rest is given up.
	defer func() { l.Grow(l.index.values) }()
	for i, key := range n.Keys {
		width, from := int(n.Widths[i]&^pulledBit), int(n.Places[i]-1)
		if from < 0 || (from+width)*size > len(n.Residual) {
			return false
		}
		c := l.index.at(key)
		if c.place == 0 {
			counted, ok := s.makeRoom(l, 1, width)
			if !ok {
				return false
			}
			s.addKey(l, key, width)
			s.settleCount(l, counted)
			c = l.index.at(key)
		}
		// The key has another number of values now: its residual belongs to nothing.
		if c.size() != width {
			return false
		}
		for j := range width {
			at = append(at, c.place-1+uint32(j))
		}
		values = append(values, n.Residual[from*size:(from+width)*size]...)
	}
	l.Grow(l.index.values)
	l.SetAge(max(l.Age(), n.Age))
	s.save(l.Layer, l.extent, at)
	return len(at) == 0 || l.AddResidual(at, values) == nil
}

package capture

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/test/require"
)

var update = flag.Bool("update", false, "write the golden files anew")

// recordings are the captures of real programs, with what was counted in them
// by other means.
var recordings = []struct {
	name                    string
	messages, multi, frames uint64 // multi: messages of more than one frame
	bodyBytes               uint64
	servers, workers        int
	dialect                 pslite.Dialect
}{
	{"dmlc-kv-2s2w", 153, 80, 371, 210770, 2, 2, pslite.DMLC},
	{"dmlc-kv-1s3w", 147, 78, 355, 305583, 1, 3, pslite.DMLC},
	{"dmlc-resend-2s2w", 293, 80, 511, 210703, 2, 2, pslite.DMLC},
	{"dmlc-heartbeat-2s1w", 86, 40, 204, 103708, 2, 1, pslite.DMLC},
	{"byteps-kv-2s2w", 129, 96, 403, 80545, 2, 2, pslite.BytePSRaw},
}

func readRecording(t testing.TB, name string) []byte {
	t.Helper()
	b := require.Value(os.ReadFile(require.Capture(t, name+".pcapng")))(t)
	return b
}

// segments returns all TCP segments of a recording, payloads copied.
func segments(t testing.TB, file []byte) (all []Segment) {
	t.Helper()
	skipped, err := Segments(bytes.NewReader(file), func(s *Segment) error {
		c := *s
		c.Payload = bytes.Clone(s.Payload)
		all = append(all, c)
		return nil
	})
	if err != nil || skipped != 0 {
		t.Fatalf("%d packets skipped, %v", skipped, err)
	}
	return all
}

// line is a message as the golden files have it.
func line(m *Message) string {
	return fmt.Sprintf("%s %s %s %s ts=%d head=%d keys=%d values=%d sizes=%v",
		m.Dialect, m.From, m.To, m.Meta.Kind(), m.Meta.Timestamp, m.Meta.Head, m.KeyCount(), m.ValueCount(), m.Sizes)
}

func TestRecordings(t *testing.T) {
	for _, rec := range recordings {
		t.Run(rec.name, func(t *testing.T) {
			var list bytes.Buffer
			var multi uint64
			totals := require.Value(Read(bytes.NewReader(readRecording(t, rec.name)), Options{Data: true}, func(m *Message) error {
				fmt.Fprintln(&list, line(m))
				if len(m.Sizes) > 1 {
					multi++
				}
				if m.Dialect != rec.dialect {
					t.Errorf("dialect %s: %s", m.Dialect, line(m))
				}
				return m.Check()
			}))(t)
			connections := totals.Connections
			if want := (Totals{Messages: rec.messages, Frames: rec.frames, BodyBytes: rec.bodyBytes, Connections: connections}); totals != want {
				t.Errorf("got %+v, want %+v", totals, want)
			}
			if multi != rec.multi {
				t.Errorf("%d messages of more than one frame, want %d", multi, rec.multi)
			}
			golden(t, filepath.Join("testdata", rec.name+".golden"), list.Bytes())
		})
	}
}

func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(path, got, 0o644))
	}
	want := require.Value(os.ReadFile(path))(t)
	gotLines, wantLines := strings.Split(string(got), "\n"), strings.Split(string(want), "\n")
	for i := range max(len(gotLines), len(wantLines)) {
		g, w := at(gotLines, i), at(wantLines, i)
		if g != w {
			t.Fatalf("%s:%d: got\n\t%s\nwant\n\t%s", path, i+1, g, w)
		}
	}
}

func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "(nothing)"
}

// collector keeps the bytes of one direction.
type collector struct {
	t    testing.TB
	flow Flow
	all  []byte
}

func (c *collector) Bytes(_ time.Time, b []byte) { c.all = append(c.all, b...) }
func (c *collector) Gap(_ time.Time, n uint64)   { c.t.Errorf("%s: %d bytes are missing", c.flow, n) }
func (c *collector) End()                        {}

// streams returns the bytes of all directions.
func streams(t testing.TB, segs []Segment) map[Flow][]byte {
	t.Helper()
	sinks := map[Flow]*collector{}
	a := NewAssembler(func(f Flow, late bool) Sink {
		if late || sinks[f] != nil {
			t.Errorf("%s: late %v, seen before %v", f, late, sinks[f] != nil)
		}
		sinks[f] = &collector{t: t, flow: f}
		return sinks[f]
	})
	for i := range segs {
		a.Add(&segs[i])
	}
	a.Close()
	out := map[Flow][]byte{}
	for f, c := range sinks {
		out[f] = c.all
	}
	return out
}

// Every stream of every recording is taken apart to its last byte, down to
// properties of READY and fields of the meta, and put together again.
func TestRecodeRecordings(t *testing.T) {
	for _, rec := range recordings {
		t.Run(rec.name, func(t *testing.T) {
			all := streams(t, segments(t, readRecording(t, rec.name)))
			if len(all) == 0 {
				t.Fatal("no streams")
			}
			for flow, stream := range all {
				for _, step := range []int{1, 13, 1 << 20} {
					out := rebuild(t, flow, stream, step)
					if !bytes.Equal(out, stream) {
						t.Fatalf("%s, in pieces of %d: %d bytes came out as other %d bytes", flow, step, len(stream), len(out))
					}
				}
			}
		})
	}
}

// rebuild decodes a stream fed in pieces of step bytes and encodes what was
// understood of it.
func rebuild(t *testing.T, flow Flow, stream []byte, step int) (out []byte) {
	t.Helper()
	var frames [][]byte
	var body []byte
	var det pslite.Detector
	d := zmtp.NewDecoder(zmtp.Limits{})
	for piece := range slices.Chunk(stream, step) {
		for {
			ev, rest, err := d.Next(piece)
			if err != nil {
				t.Fatalf("%s: %v", flow, err)
			}
			if ev.Kind == zmtp.NeedMore {
				break
			}
			piece = rest
			switch ev.Kind {
			case zmtp.GreetingDone:
				out = append(out, rebuildGreeting(t, d.Greeting())...)
			case zmtp.FrameBody:
				body = append(body, ev.Body...)
			case zmtp.FrameEnd:
				if ev.Header.Command() {
					out = append(out, rebuildReady(t, body)...)
				} else {
					frames = append(frames, body)
				}
				body = nil
				if len(frames) > 0 && !ev.Header.More() {
					out = append(out, rebuildMessage(t, &det, frames)...)
					frames = nil
				}
			}
		}
	}
	if !d.Between() {
		t.Errorf("%s ends inside a message", flow)
	}
	return out
}

func rebuildGreeting(t *testing.T, g *zmtp.Greeting) []byte {
	major, minor := g.Version()
	if major != 3 || g.Mechanism() != "NULL" {
		t.Errorf("greeting %x", g[:])
	}
	again := zmtp.NewGreeting(minor, int(binary.BigEndian.Uint64(g[1:]))-1)
	return again[:]
}

func rebuildReady(t *testing.T, body []byte) []byte {
	name, data, err := zmtp.ParseCommand(body)
	if err != nil || string(name) != zmtp.CommandReady {
		t.Fatalf("command %q, %v", body, err)
	}
	ready := require.Value(zmtp.ParseReady(data))(t)
	return zmtp.AppendReady(nil, string(ready.SocketType), ready.Identity)
}

func rebuildMessage(t *testing.T, det *pslite.Detector, frames [][]byte) (out []byte) {
	var m pslite.Message
	d := require.Value(m.Decode(det, frames))(t)
	var again [][]byte
	if m.Identity != nil {
		again = append(again, m.Identity)
	}
	again = append(again, m.Meta.Append(nil, d))
	if keys := m.Keys(); keys != nil {
		again = append(again, pslite.AppendKeys(nil, keys.AppendTo(nil)))
	}
	again = append(again, frames[len(again):]...)
	for i, f := range again {
		out = zmtp.AppendHeader(out, zmtp.FrameHeader(len(f), i < len(again)-1))
		out = append(out, f...)
	}
	return out
}

// sharedSums replays the pushes of keys 1 to 16, of one value each, at the
// servers, each message once however often it was repeated, and returns their
// sums: of the messages of just these keys, and of all. No pull may show more
// than was pushed by then, or less than an earlier one; last is what the last
// one shows.
func sharedSums(t *testing.T, name string) (shared, all, last map[uint64]float32) {
	shared, all, last = map[uint64]float32{}, map[uint64]float32{}, map[uint64]float32{}
	seen := map[string]bool{}
	_, err := Read(bytes.NewReader(readRecording(t, name)), Options{Data: true}, func(m *Message) error {
		keys, vals := m.Message.Keys(), m.Message.Values()
		id := fmt.Sprint(m.From, m.To, m.Meta.CustomerID, m.Meta.Timestamp, m.Meta.Request)
		if seen[id] || m.Lens() != nil || keys.Len() == 0 || keys.Len() > 100 {
			return nil
		}
		seen[id] = true
		for i := range min(keys.Len(), vals.Len()) {
			key, v := keys.At(i), vals.Float32(i)
			switch {
			case key < 1 || key > 16:
			case m.Meta.Request && m.Meta.Push:
				all[key] += v
				if keys.Len() == 16 {
					shared[key] += v
				}
			case !m.Meta.Request && m.Meta.Pull:
				if v > all[key] || v < last[key] {
					t.Errorf("key %d: a pull shows %g after pushes of %g and an earlier pull of %g", key, v, all[key], last[key])
				}
				last[key] = v
			}
		}
		return nil
	})
	require.NoError(t, err)
	return shared, all, last
}

// Each worker pushed 1.0 for keys 1 to 16 in each of four rounds; the worker of
// rank r has a key r of its own besides. The servers' last answers show the
// sums of all of it.
func TestSharedKeysSums(t *testing.T) {
	for _, rec := range recordings {
		if rec.dialect != pslite.DMLC {
			continue
		}
		t.Run(rec.name, func(t *testing.T) {
			shared, all, last := sharedSums(t, rec.name)
			for key := uint64(1); key <= 16; key++ {
				if want := float32(4 * rec.workers); shared[key] != want {
					t.Errorf("key %d: the shared pushes add up to %g, want %g", key, shared[key], want)
				}
				if all[key] != last[key] {
					t.Errorf("key %d: all pushes add up to %g, the last pull shows %g", key, all[key], last[key])
				}
			}
		})
	}
}

// Every ACK carries the signature of a message that went the other way.
func TestAcksCarrySignatures(t *testing.T) {
	sent := map[string]bool{}
	acks := 0
	_, err := Read(bytes.NewReader(readRecording(t, "dmlc-resend-2s2w")), Options{}, func(m *Message) error {
		from, to := nodeID(t, m.From), nodeID(t, m.To)
		if m.Meta.Control.Cmd != pslite.Ack {
			sent[fmt.Sprint(m.To, m.From, pslite.Signature(&m.Meta, from, to))] = true
			return nil
		}
		acks++
		if !sent[fmt.Sprint(m.From, m.To, m.Meta.Control.MsgSig)] {
			t.Errorf("ACK %s to %s of %#x: no such message", m.From, m.To, m.Meta.Control.MsgSig)
		}
		return nil
	})
	if err != nil || acks != 140 {
		t.Errorf("%d ACKs, %v", acks, err)
	}
}

// nodeID is the reverse of pslite.NodeName; an address stands for a node
// without an id, for which PS-lite's signature has the low byte of Empty.
func nodeID(t *testing.T, name string) int32 {
	for id := int32(1); id < 20; id++ {
		if pslite.NodeName(id) == name {
			return id
		}
	}
	return pslite.Empty
}

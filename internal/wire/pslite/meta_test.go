package pslite

import (
	"bytes"
	"fmt"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/test/require"
)

var protobufDialects = []Dialect{DMLC, DMLC2018, DMLC2017}

// drawMeta draws any message that PS-lite's library can send in dialect d.
func drawMeta(t *rapid.T, d Dialect) Meta {
	number := func(name string) int32 {
		return rapid.OneOf(rapid.Int32(), rapid.SampledFrom([]int32{0, 1, 127, 128, -1, 1 << 30})).Draw(t, name)
	}
	var m Meta
	m.Reset()
	m.Head = number("head")
	m.Request = rapid.Bool().Draw(t, "request")
	if rapid.Bool().Draw(t, "has timestamp") {
		m.Timestamp = number("timestamp")
	}
	if rapid.Bool().Draw(t, "has app") {
		m.AppID = number("app")
	}
	if m.CustomerID = number("customer"); d == DMLC2017 {
		m.CustomerID = m.AppID
	}
	if d == DMLC {
		m.Priority = number("priority")
	}
	if d != DMLC2017 {
		m.DataSize = number("data size")
	}
	switch rapid.IntRange(0, 2).Draw(t, "what") {
	case 0: // data
		m.Push = rapid.Bool().Draw(t, "push")
		m.Pull = !m.Push
		if d == DMLC {
			m.Pull = rapid.Bool().Draw(t, "pull")
		}
		m.DataTypes = rapid.SliceOfN(rapid.Map(rapid.Int32Range(0, 11), func(i int32) DataType { return DataType(i) }), 0, 3).Draw(t, "types")
	case 1: // SimpleApp
		m.SimpleApp = true
		m.Body = rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "body")
	case 2:
		m.Control = drawControl(t, d, number)
	}
	return m
}

func drawControl(t *rapid.T, d Dialect, number func(string) int32) Control {
	c := Control{Cmd: Command(rapid.Int32Range(1, 5).Draw(t, "cmd"))}
	switch c.Cmd {
	case Barrier:
		c.BarrierGroup = number("group")
	case Ack:
		c.MsgSig = rapid.Uint64().Draw(t, "sig")
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "nodes") {
		n := Node{
			Role: Role(rapid.Int32Range(0, 2).Draw(t, "role")), ID: number("id"),
			Hostname: rapid.StringMatching(`[a-z0-9.]{0,60}`).Draw(t, "host"),
			Port:     number("port"), IsRecovery: rapid.Bool().Draw(t, "recovery"),
		}
		if d != DMLC2017 {
			n.CustomerID = int32(i)
		}
		c.Nodes = append(c.Nodes, n)
	}
	return c
}

// What Google's encoder writes by the generation's definition is read as what
// was meant and written as the same bytes; so is what the fields alone say.
func TestMetaOfEveryGeneration(t *testing.T) {
	for _, d := range protobufDialects {
		desc := schema(t, d)
		t.Run(d.String(), func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				want := drawMeta(rt, d)
				b := pack(t, desc, &want)
				var got Meta
				if found, err := Detect(b, &got); err != nil || found != d {
					rt.Fatalf("detected %s, %v", found, err)
				}
				require.NoError(rt, got.Decode(b, d))
				if out := got.Append(nil, d); !bytes.Equal(out, b) {
					rt.Fatalf("read and written\n% x, was\n% x", out, b)
				}
				if got.raw != nil {
					rt.Fatal("PS-lite's own form was not taken as canonical")
				}
				if out := want.Append(nil, d); d != DMLC2017 && !bytes.Equal(out, b) {
					rt.Fatalf("written\n% x, want\n% x", out, b)
				}
				// Fields may differ from the constructor's only in presence.
				got.flips, got.Control.flips = 0, 0
				for i := range got.Control.Nodes {
					got.Control.Nodes[i].flips = 0
				}
				if !got.equal(&want) {
					rt.Fatalf("read %+v, want %+v", got, want)
				}
			})
		})
	}
}

// A message that was read and changed keeps what it had of unknown fields.
func TestUnknownFieldsSurviveChanges(t *testing.T) {
	var m Meta
	m.Reset()
	m.Head, m.AppID, m.Timestamp = 0, 0, 5
	m.Control = Control{Cmd: Barrier, BarrierGroup: 7, Nodes: []Node{{Role: Worker, ID: 9, Hostname: "h"}}}
	unknown := []byte{0xf2, 0x06, 3, 'x', 'y', 'z'} // field 110, bytes
	m.unknown, m.Control.unknown, m.Control.Nodes[0].unknown = unknown, unknown, unknown
	b := m.Append(nil, DMLC)

	var got Meta
	require.NoError(t, got.Decode(b, DMLC))
	if out := got.Append(nil, DMLC); !bytes.Equal(out, b) {
		t.Fatalf("unchanged:\n% x, was\n% x", out, b)
	}
	m.Timestamp, got.Timestamp = 1_000_000, 1_000_000
	if out, want := got.Append(nil, DMLC), m.Append(nil, DMLC); !bytes.Equal(out, want) {
		t.Errorf("changed:\n% x, want\n% x", out, want)
	}
}

// Forms that PS-lite's encoder never writes tell no dialect. In a stream whose dialect
// is known they come out as they were, and in its own form once something was changed.
func TestForeignForms(t *testing.T) {
	for _, tc := range []struct {
		name string
		b    []byte
	}{
		{"fields out of order", []byte{0x20, 1, 0x08, 5, 0x60, 0}},
		{"a field twice", []byte{0x08, 5, 0x08, 6, 0x60, 0}},
		{"a long varint", []byte{0x08, 0x85, 0x00, 0x60, 0}},
		{"a long tag", []byte{0x88, 0x00, 5, 0x60, 0}},
		{"a negative number in 5 bytes", []byte{0x08, 0xff, 0xff, 0xff, 0xff, 0x0f, 0x60, 0}},
		{"a bool of 2", []byte{0x08, 5, 0x60, 2}},
		{"types not packed", []byte{0x08, 5, 0x48, 8, 0x48, 9, 0x60, 0}},
		{"no types, packed", []byte{0x08, 5, 0x4a, 0, 0x60, 0}},
		{"head as bytes", []byte{0x0a, 1, 7, 0x60, 0}},
		{"unknown in the middle", []byte{0x08, 5, 0xf0, 0x06, 1, 0x60, 0}},
		{"defaults left out", []byte{0x28, 1, 0x60, 1}},
		{"control out of order", []byte{0x1a, 4, 0x18, 7, 0x08, 3, 0x60, 0}},
		{"an empty body", []byte{0x12, 0, 0x60, 0}},
		{"command EMPTY written", []byte{0x1a, 2, 0x08, 0, 0x60, 0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var m Meta
			if d, err := Detect(tc.b, &m); err == nil {
				t.Errorf("taken for %s", d)
			}
			require.NoError(t, m.Decode(tc.b, DMLC))
			if out := m.Append(nil, DMLC); !bytes.Equal(out, tc.b) {
				t.Errorf("% x came out as % x", tc.b, out)
			}
			m.Timestamp = 77
			var again Meta
			if err := again.Decode(m.Append(nil, DMLC), DMLC); err != nil || again.Timestamp != 77 || again.Head != m.Head || again.Push != m.Push {
				t.Errorf("changed: %+v, %v", again, err)
			}
		})
	}
}

func TestMetaRefuses(t *testing.T) {
	for _, tc := range []struct {
		name string
		d    Dialect
		b    []byte
	}{
		{"cut inside a field", DMLC, []byte{0x08}},
		{"body beyond the end", DMLC, []byte{0x12, 200, 1}},
		{"field number 0", DMLC, []byte{0x00, 1}},
		{"control without a command", DMLC, []byte{0x1a, 2, 0x18, 7}},
		{"node without a role", DMLC, []byte{0x1a, 6, 0x08, 2, 0x12, 2, 0x10, 9}},
		{"types cut", DMLC, []byte{0x4a, 1, 0x80}},
		{"struct too short", BytePSRaw, make([]byte, rawMetaSize-1)},
		{"struct's counts do not add up", BytePSRaw, make([]byte, rawMetaSize+1)},
		{"struct's count of 2^32-1", BytePSRaw, func() []byte {
			b := make([]byte, rawMetaSize)
			putInt32(b, rawNodeCount, -1)
			return b
		}()},
		{"struct's bool of 2", BytePSRaw, func() []byte { b := make([]byte, rawMetaSize); b[rawPush] = 2; return b }()},
		{"struct's command", BytePSRaw, func() []byte { b := make([]byte, rawMetaSize); b[rawCmd] = 99; return b }()},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var m Meta
			if err := m.Decode(tc.b, tc.d); err == nil {
				t.Errorf("% x was accepted: %+v", tc.b, m)
			}
		})
	}
}

func TestBytePSRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := drawMeta(rt, DMLC2018)
		m.Pull = m.Data() && !m.Push
		m.BytePS = BytePS{Key: rapid.Uint64().Draw(rt, "key"), Addr: 3, ValLen: 4, Option: -5, SID: 6, SrcDevType: 1, SrcDevID: 2, DstDevType: 3, DstDevID: -1}
		for i := range m.Control.Nodes {
			m.Control.Nodes[i].BytePS = &BytePSNode{NumPorts: 2, Ports: [32]int32{5, 6}, DevIDs: [32]int32{7}, EndpointName: [64]byte{1}, EndpointNameLen: 1, AuxID: -1}
			if m.Control.Nodes[i].ID == rawEmpty {
				m.Control.Nodes[i].ID = Empty
			}
		}
		b := m.Append(nil, BytePSRaw)
		var got Meta
		if d, err := Detect(b, &got); err != nil || d != BytePSRaw || !got.equal(&m) {
			rt.Fatalf("%s, %v: read %+v, want %+v", d, err, got, m)
		}
		// Padding is whatever the sender's memory held; it must come out again.
		b[rawSimpleApp+1] = 0xaa
		if err := got.Decode(b, BytePSRaw); err != nil || !bytes.Equal(got.Append(nil, BytePSRaw), b) {
			rt.Fatal("padding was not kept", err)
		}
	})
}

func FuzzMetaProtobuf(f *testing.F) {
	for i, d := range protobufDialects {
		desc := schema(f, d)
		for _, m := range exampleMetas() {
			f.Add(pack(f, desc, &m), uint8(i))
		}
	}
	f.Add([]byte("\x1a\x00\x1a\x04\b000"), uint8(0)) // a control in two pieces
	descs := map[Dialect]protoreflect.MessageDescriptor{}
	for _, d := range protobufDialects {
		descs[d] = schema(f, d)
	}
	f.Fuzz(func(t *testing.T, b []byte, which uint8) {
		d := protobufDialects[int(which)%len(protobufDialects)]
		var m Meta
		err := m.Decode(b, d)
		if _, theirs := unpack(descs[d], b); (err == nil) != (theirs == nil) && !lenient(theirs) && !(err != nil && controls(b) > 1) {
			t.Fatalf("we say %v, protobuf says %v", err, theirs)
		}
		if err != nil {
			return
		}
		if out := m.Append(nil, d); !bytes.Equal(out, b) {
			t.Fatalf("% x came out as % x", b, out)
		}
		c := m.Clone()
		m.raw, m.Timestamp = nil, 12345
		var again Meta
		if err := again.Decode(m.Append(nil, d), d); err != nil || again.Timestamp != 12345 || again.Head != c.Head || again.Kind() != c.Kind() {
			t.Fatalf("in PS-lite's form: %+v, %v; want %+v", again, err, c)
		}
	})
}

// lenient reports whether an error is one of Go's protobuf package that
// PS-lite's C++ would not raise: proto2 strings need not be UTF-8.
func lenient(err error) bool {
	return err != nil && bytes.Contains([]byte(err.Error()), []byte("UTF-8"))
}

// controls counts a meta's control fields. Where there are several, protobuf
// merges them before it looks for the command; we want one in each. No encoder
// writes more than one.
func controls(b []byte) (n int) {
	for len(b) > 0 {
		number, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return n
		}
		if number == fieldControl {
			n++
		}
		b = b[size:]
		if size = protowire.ConsumeFieldValue(number, kind, b); size < 0 {
			return n
		}
		b = b[size:]
	}
	return n
}

func FuzzMetaBytePS(f *testing.F) {
	for _, m := range exampleMetas() {
		f.Add(m.Append(nil, BytePSRaw))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var m Meta
		if m.Decode(b, BytePSRaw) != nil {
			return
		}
		if out := m.Append(nil, BytePSRaw); !bytes.Equal(out, b) {
			t.Fatalf("% x came out as % x", b, out)
		}
	})
}

// exampleMetas returns one message of each common shape.
func exampleMetas() []Meta {
	var e Meta
	e.Reset()
	e.Head, e.AppID, e.Timestamp = 0, 0, 7
	push, pull, answer, app, barrier, ack, nodes := e, e, e, e, e, e, e
	push.Push, push.Request, push.DataTypes, push.DataSize = true, true, []DataType{Uint64, Float, Int32}, 4096
	pull.Pull, pull.Request, pull.DataTypes, pull.Priority = true, true, []DataType{Uint64, Float}, -3
	answer.Push = true
	app.SimpleApp, app.Request, app.Head, app.Body = true, true, 42, []byte("hello")
	barrier.Control = Control{Cmd: Barrier, BarrierGroup: ServerGroup + WorkerGroup}
	ack.Control = Control{Cmd: Ack, MsgSig: 1<<63 | 5}
	nodes.Control = Control{Cmd: AddNode, Nodes: []Node{
		{Role: Scheduler, ID: 1, Hostname: "127.0.0.1", Port: 8000},
		{Role: Worker, ID: Empty, Hostname: "worker.example", Port: 40000, IsRecovery: true},
	}}
	return []Meta{push, pull, answer, app, barrier, ack, nodes}
}

func ExampleMeta_Append() {
	m := exampleMetas()[0]
	fmt.Printf("% x\n", m.Append(nil, DMLC))
	// Output: 08 00 20 01 28 01 30 00 38 00 40 07 4a 03 08 09 03 50 00 58 80 20 60 00 68 00
}

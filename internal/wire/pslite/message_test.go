package pslite

import (
	"slices"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/test/require"
)

// pushFrames returns the frames of a push of keys with k values each.
func pushFrames(keys []uint64, k int, lens []int32) [][]byte {
	m := exampleMetas()[0]
	if lens == nil {
		m.DataTypes = m.DataTypes[:2]
	}
	n := k * len(keys)
	for _, l := range lens {
		n += int(l)
	}
	frames := [][]byte{m.Append(nil, DMLC), AppendKeys(nil, keys), AppendFloat32(nil, make([]float32, n))}
	if lens != nil {
		frames = append(frames, AppendLens(nil, lens))
	}
	return frames
}

func TestMessageView(t *testing.T) {
	keys := []uint64{1, 5, 1 << 63}
	frames := pushFrames(keys, 0, []int32{1, 3, 5})
	AppendFloat32(frames[2][:0], []float32{1, -2.5})
	var det Detector
	var m Message
	if d, err := m.Decode(&det, frames); err != nil || d != DMLC {
		t.Fatal(d, err)
	}
	if got := m.Keys().AppendTo(nil); !slices.Equal(got, keys) || m.Keys().Len() != 3 {
		t.Errorf("keys %v", got)
	}
	if v := m.Values(); v.Len() != 9 || v.Type != Float || v.Float32(1) != -2.5 {
		t.Errorf("%d values of type %d", v.Len(), v.Type)
	}
	if l := m.Lens(); l.Len() != 3 || l.At(2) != 5 || l.Sum() != 9 {
		t.Errorf("lengths %v", l)
	}
	// BytePS's servers put their identity before the meta of an answer.
	meta := exampleMetas()[2]
	var other Detector
	if d, err := m.Decode(&other, [][]byte{[]byte("ps8"), meta.Append(nil, BytePSRaw)}); err != nil || d != BytePSRaw || string(m.Identity) != "ps8" || len(m.Data) != 0 {
		t.Errorf("%s, %v, identity %q, %d data frames", d, err, m.Identity, len(m.Data))
	}
}

func TestMessageRefuses(t *testing.T) {
	good := pushFrames([]uint64{1, 2}, 0, []int32{1, 3})
	change := func(i int, frame []byte) [][]byte {
		f := slices.Clone(good)
		f[i] = frame
		return f
	}
	for _, tc := range []struct {
		name   string
		frames [][]byte
		want   string
	}{
		{"nothing", nil, "without frames"},
		{"no meta", [][]byte{{}}, "any dialect"},
		{"keys alone", good[:2], "without values"},
		{"half a key", change(1, make([]byte, 12)), "multiple of 8"},
		{"lengths for other keys", change(3, make([]byte, 12)), "for 2 keys"},
		{"lengths for other values", change(2, make([]byte, 20)), "add up to 4, but got 5"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var det Detector
			var m Message
			if _, err := m.Decode(&det, tc.frames); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q in it", err, tc.want)
			}
		})
	}
}

// FuzzMessage reads any frames as a connection's messages would be read.
func FuzzMessage(f *testing.F) {
	frames := pushFrames([]uint64{1, 2}, 0, []int32{1, 3})
	f.Add(frames[0], frames[1], frames[2], frames[3], uint8(4))
	f.Add([]byte("ps8"), exampleMetas()[1].Append(nil, BytePSRaw), []byte{}, []byte{}, uint8(2))
	f.Fuzz(func(t *testing.T, a, b, c, d []byte, n uint8) {
		var det Detector
		var m Message
		for range 2 {
			if _, err := m.Decode(&det, [][]byte{a, b, c, d}[:n%5]); err != nil {
				continue
			}
			for i := range m.Keys().Len() {
				m.Keys().At(i)
			}
			for i := range m.Lens().Len() {
				m.Lens().At(i)
			}
			if v := m.Values(); v.Type == Float {
				for i := range v.Len() {
					v.Float32(i)
				}
			}
			_ = m.Meta.Kind().String()
		}
	})
}

func BenchmarkDecodeMeta(b *testing.B) {
	for _, d := range []Dialect{DMLC, DMLC2018, DMLC2017, BytePSRaw} {
		b.Run(d.String(), func(b *testing.B) {
			frame := exampleMetas()[0].Append(nil, d)
			var det Detector
			var m Meta
			b.ReportAllocs()
			for b.Loop() {
				if _, err := det.Decode(frame, &m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkReadMessages reads messages of 50 bytes from the connection's bytes
// to the fields of their meta.
func BenchmarkReadMessages(b *testing.B) {
	app := exampleMetas()[3]
	app.Body = make([]byte, 50-len(app.Append(nil, DMLC))+len(app.Body))
	frame := app.Append(nil, DMLC)
	if len(frame) != 50 {
		b.Fatalf("%d bytes", len(frame))
	}
	var stream []byte
	for range 1000 {
		stream = append(zmtp.AppendHeader(stream, zmtp.FrameHeader(len(frame), false)), frame...)
	}
	d := zmtp.NewDecoder(zmtp.Limits{})
	d.Reset(true)
	var det Detector
	var m Meta
	var whole zmtp.Gather
	b.ReportAllocs()
	messages := 0
	for b.Loop() {
		for rest := stream; ; {
			ev, r, err := d.Next(rest)
			require.NoError(b, err)
			if rest = r; ev.Kind == zmtp.NeedMore {
				break
			}
			switch ev.Kind {
			case zmtp.FrameStart:
				whole.Start()
			case zmtp.FrameBody:
				whole.Add(ev.Body)
			case zmtp.FrameEnd:
				if _, err := det.Decode(whole.Bytes(), &m); err != nil {
					b.Fatal(err)
				}
				messages++
			}
		}
	}
	b.ReportMetric(float64(messages)/b.Elapsed().Seconds(), "messages/s")
}

func TestNoAllocations(t *testing.T) {
	for _, d := range []Dialect{DMLC, DMLC2018, DMLC2017, BytePSRaw} {
		frames := [][]byte{exampleMetas()[0].Append(nil, d), AppendKeys(nil, []uint64{1}), make([]byte, 4), AppendLens(nil, []int32{1})}
		var det Detector
		var m Message
		for range enough { // until the detector is certain
			require.Value(m.Decode(&det, frames))(t)
		}
		out := make([]byte, 0, 256)
		if n := testing.AllocsPerRun(20, func() {
			if _, err := m.Decode(&det, frames); err != nil {
				t.Fatal(err)
			}
			out = m.Meta.Append(out[:0], d)
		}); n != 0 {
			t.Errorf("%s: %v allocations a message", d, n)
		}
	}
}

func BenchmarkAppendMeta(b *testing.B) {
	m := exampleMetas()[0]
	buf := make([]byte, 0, 256)
	b.ReportAllocs()
	for b.Loop() {
		buf = m.Append(buf[:0], DMLC)
	}
}

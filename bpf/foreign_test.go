package bpf

import (
	"bytes"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/test/require"
)

// TestForeignTraffic: other protocols are recognised by their first bytes, counted,
// and cost no entry in the table of streams.
func TestForeignTraffic(t *testing.T) {
	require.BPF(t)
	m := newStreamMaker(5)
	plain := zmtp.NewGreeting(1, 0)
	greeted := zmtp.AppendReady(append([]byte{}, plain[:]...), "PUB", nil)
	curve := plain
	copy(curve[12:], "CURVE\x00")
	second := plain
	second[10] = 1
	body := bytes.Repeat([]byte("some text that is no PS-lite meta. "), 100)
	for i, tc := range []struct {
		name   string
		stream []byte
		reason Reason
	}{
		{"HTTP", append([]byte("POST /push HTTP/1.1\r\nHost: server\r\n\r\n"), body...), ReasonForeignProtocol},
		{"TLS", append([]byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}, m.bytes(4000)...), ReasonForeignProtocol},
		{"bytes that begin as ZMTP", append([]byte{0xff}, m.bytes(4000)...), ReasonForeignProtocol},
		{"ZMTP with CURVE", append(curve[:], body...), ReasonForeignZMTP},
		{"ZMTP 2", append(second[:], body...), ReasonForeignZMTP},
		{"ZMTP without READY", append(append([]byte{}, plain[:]...), body...), ReasonForeignMessages},
		{"ZMTP that publishes text", m.frame(append([]byte{}, greeted...), body, false), ReasonForeignMessages},
		{"ZMTP that publishes little", m.frame(m.frame(append([]byte{}, greeted...), []byte("topic"), true), body, false), ReasonForeignMessages},
		{"ZMTP with many frames", manyFrames(m, greeted), ReasonForeignMessages},
		{"ZMTP with reserved flags", append(append([]byte{}, greeted...), 0x80, 3, 1, 2, 3, 4), ReasonForeignMessages},
	} {
		for _, size := range []int{maxPayload, 11, 1} {
			t.Run(tc.name, func(t *testing.T) {
				f := newFeeder(t, Options{})
				f.pieces(t, uint32(i+1), tc.stream, size)
				f.collect(t)
				counts := f.counts(t)
				if counts[tc.reason].Events == 0 || counts.Lost().Events != 0 {
					t.Errorf("counts %+v", counts)
				}
				streams, err := f.c.Streams()
				if err != nil || len(streams) != 0 {
					t.Errorf("%d streams, %v; want none", len(streams), err)
				}
				for id, s := range f.seen {
					if len(s.messages) > 0 || len(s.events) != 2 || s.events[1] != KindForeign {
						t.Errorf("stream %v: %+v", id, s)
					}
				}
			})
		}
	}
}

// manyFrames is a message with a good meta and more frames than PS-lite uses.
// Its meta is believed, so only the boundary is given up.
func manyFrames(m *streamMaker, b []byte) []byte {
	b = append([]byte{}, b...)
	for range 6 {
		b = m.frame(b, m.bytes(30), true)
	}
	return m.frame(b, nil, false)
}

// pieces sends a stream in segments of at most size bytes.
func (f *feeder) pieces(t *testing.T, number uint32, stream []byte, size int) StreamID {
	t.Helper()
	s := segment{stream: number, seq: 99, flags: tcpSyn}
	for at := 0; at < len(stream); at += size {
		s.payload = stream[at:min(at+size, len(stream))]
		f.send(t, s)
		s.seq = 100 + uint32(at+len(s.payload))
		s.flags = 0
	}
	return s.id()
}

func TestOtherPackets(t *testing.T) {
	require.BPF(t)
	f := newFeeder(t, Options{})
	good := segment{stream: 1, payload: []byte("x"), flags: tcpSyn}
	change := func(at int, value byte) []byte {
		b := good.bytes(nil)
		b[etherSize+at] = value
		return b
	}
	six := segment{stream: 1, payload: []byte("x"), ipv6: true}
	withExtension := func(next, length byte) []byte {
		b := six.bytes(nil)
		b[etherSize+6] = next
		b[etherSize+ip6Size] = 6
		b[etherSize+ip6Size+1] = length
		return b
	}
	for _, tc := range []struct {
		name   string
		packet []byte
		reason Reason
	}{
		{"UDP", change(9, 17), ReasonNotTCP},
		{"more fragments", change(6, 0x20), ReasonFragment},
		{"later fragment", change(7, 5), ReasonFragment},
		{"IPv6 fragment", withExtension(44, 0), ReasonFragment},
		{"UDP over IPv6", withExtension(17, 0), ReasonNotTCP},
		{"extension beyond the end", withExtension(60, 200), ReasonUnreadable},
		{"no protocol", withExtension(59, 0), ReasonNotTCP},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := f.counts(t)
			f.sendPacket(t, tc.packet)
			after := f.counts(t)
			if after[tc.reason].Events != before[tc.reason].Events+1 {
				t.Errorf("counts %+v", after)
			}
		})
	}
}

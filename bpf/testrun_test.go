package bpf

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/psidecar/psidecar/test/require"
)

// feeder runs a program, egress by default, on synthetic packets (BPF_PROG_TEST_RUN), with
// streams distinguished by address, and gathers its records.
type feeder struct {
	c       *Capture
	program *ebpf.Program
	packet  []byte
	seen    map[StreamID]*transcript
	runs    int // of keys, in streams that were compared
}

func newFeeder(t testing.TB, o Options) *feeder {
	t.Helper()
	c, err := open(o, true)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return &feeder{c: c, program: c.objects.egress, seen: map[StreamID]*transcript{}}
}

// TCP flags of a segment.
const (
	tcpFin = 1
	tcpSyn = 2
	tcpRst = 4
	tcpAck = 16
)

// maxPayload fits into the one page that a test run takes as a packet.
const maxPayload = 1400

// segment is one packet: stream number n from port n.
type segment struct {
	stream  uint32
	seq     uint32
	flags   byte
	ipv6    bool
	payload []byte
}

// id is the name that the program, keyed by address, gives to the stream.
func (s *segment) id() StreamID {
	host := uint64(0x0100007f) // 127.0.0.1 in memory order, both sides
	if s.ipv6 {
		host = 0x01000000
	}
	h := (host ^ host<<16) << 32
	return StreamID((h | uint64(s.stream>>16)<<16 | uint64(s.stream&0xffff)) << 1)
}

const (
	etherSize = 14
	ip4Size   = 20
	ip6Size   = 40
	tcpSize   = 20
)

// bytes writes the packet with its Ethernet header.
func (s *segment) bytes(b []byte) []byte {
	b = append(b[:0], make([]byte, etherSize)...)
	if s.ipv6 {
		binary.BigEndian.PutUint16(b[12:], 0x86dd)
		ip := make([]byte, ip6Size)
		ip[0] = 6 << 4
		binary.BigEndian.PutUint16(ip[4:], uint16(tcpSize+len(s.payload)))
		ip[6], ip[7] = 6, 64
		ip[23], ip[39] = 1, 1 // ::1
		b = append(b, ip...)
	} else {
		binary.BigEndian.PutUint16(b[12:], 0x0800)
		ip := make([]byte, ip4Size)
		ip[0] = 0x45
		binary.BigEndian.PutUint16(ip[2:], uint16(ip4Size+tcpSize+len(s.payload)))
		ip[8], ip[9] = 64, 6
		copy(ip[12:], []byte{127, 0, 0, 1})
		copy(ip[16:], []byte{127, 0, 0, 1})
		b = append(b, ip...)
	}
	tcp := make([]byte, tcpSize)
	binary.BigEndian.PutUint16(tcp[0:], uint16(s.stream>>16))
	binary.BigEndian.PutUint16(tcp[2:], uint16(s.stream))
	binary.BigEndian.PutUint32(tcp[4:], s.seq)
	tcp[12], tcp[13] = 5<<4, s.flags|tcpAck
	b = append(b, tcp...)
	return append(b, s.payload...)
}

// send passes the segment through the program, which must let it pass.
func (f *feeder) send(t testing.TB, s segment) {
	f.packet = s.bytes(f.packet)
	f.sendPacket(t, f.packet)
}

func (f *feeder) sendPacket(t testing.TB, packet []byte) {
	verdict, err := f.program.Run(&ebpf.RunOptions{Data: packet})
	if err != nil {
		t.Fatalf("running the program on a packet of %d bytes: %v", len(packet), err)
	}
	if verdict != 1 {
		t.Fatalf("the program returned %d: it must let every packet pass", verdict)
	}
}

// collect reads what was copied so far.
func (f *feeder) collect(t testing.TB) {
	f.c.ring.drain(func(batch []byte) {
		err := f.c.unpack(batch, func(r *Record) {
			s := f.seen[r.Stream]
			if s == nil {
				s = &transcript{}
				f.seen[r.Stream] = s
			}
			s.add(r)
		})
		require.NoError(t, err)
	})
}

// transcript of a stream, empty where nothing was copied.
func (f *feeder) transcript(id StreamID) *transcript {
	if s := f.seen[id]; s != nil {
		return s
	}
	return &transcript{}
}

// forget makes the next segment of a stream the first that is seen of it.
func (f *feeder) forget(t testing.TB, id StreamID) {
	t.Helper()
	for _, m := range []*ebpf.Map{f.c.objects.streams, f.c.objects.foreigners} {
		if err := m.Delete(uint64(id)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.Fatal(err)
		}
	}
	delete(f.seen, id)
	delete(f.c.batches, id)
}

func (f *feeder) counts(t testing.TB) Counts {
	t.Helper()
	counts := require.Value(f.c.Counts())(t)
	return counts
}

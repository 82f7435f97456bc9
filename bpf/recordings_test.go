package bpf

import (
	"errors"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/psidecar/psidecar/test/require"
)

// recordings of real programs, with the number of ZMTP messages, those of more
// than one frame, and all data and command frames, counted by other means.
var recordings = []struct {
	file                       string
	messages, withData, frames int
}{
	{"dmlc-kv-2s2w.pcapng", 153, 80, 371},
	{"dmlc-kv-1s3w.pcapng", 147, 78, 355},
	{"dmlc-resend-2s2w.pcapng", 293, 80, 511},
	{"dmlc-heartbeat-2s1w.pcapng", 86, 40, 204},
	{"byteps-kv-2s2w.pcapng", 129, 96, 403},
}

// flow is one direction of a recorded connection.
type flow struct {
	segments []segment
	stream   []byte // in order, repeats left out
	next     uint32
}

// TestRecordings: the kernel finds in real traffic, cut into segments of any
// size, exactly the messages that the Go reader finds.
func TestRecordings(t *testing.T) {
	require.BPF(t)
	f := newFeeder(t, Options{Sampling: Sampling{AnswerKeys: true}})
	for _, rec := range recordings {
		for _, size := range []int{maxPayload, 100, 7, 1} {
			t.Run(fmt.Sprintf("%s/%d", rec.file, size), func(t *testing.T) {
				flows := readFlows(t, require.Capture(t, rec.file))
				var messages, withData, frames int
				for _, fl := range flows {
					if len(fl.stream) == 0 {
						continue
					}
					got := f.replay(t, fl, size)
					want, commands, envelopes, err := readStream(fl.stream, false)
					if err != nil {
						t.Fatalf("Go reader: %v", err)
					}
					if diff := got.differ(want, commands); diff != "" {
						t.Fatalf("segments of %d: %s", size, diff)
					}
					messages += len(want)
					frames += len(commands) + envelopes
					for _, m := range want {
						frames += frameCount(m)
						if m.lengths[1] > 0 || m.envelope {
							withData++
						}
					}
				}
				if messages != rec.messages || withData != rec.withData || frames != rec.frames {
					t.Errorf("%d messages, %d with data, %d frames; want %d, %d, %d",
						messages, withData, frames, rec.messages, rec.withData, rec.frames)
				}
				counts := f.counts(t)
				if lost := counts.Lost(); lost.Events != 0 {
					t.Errorf("lost: %v", counts)
				}
			})
		}
	}
}

// frameCount of a message with keys is at least 3 (an empty value frame stands
// in a pull), 4 with lens.
func frameCount(m message) int {
	switch {
	case m.lengths[3] > 0:
		return 4
	case m.lengths[1] > 0:
		return 3
	}
	return 1
}

// replay sends a flow's segments, cut to at most size bytes, and returns what
// the kernel made of it. The test build begins a stream with a SYN that
// carries bytes, where the real one asks the socket.
func (f *feeder) replay(t *testing.T, fl *flow, size int) *transcript {
	t.Helper()
	id := fl.segments[0].id()
	f.forget(t, id)
	begun := false
	for _, s := range fl.segments {
		if len(s.payload) == 0 && s.flags&tcpSyn == 0 {
			f.send(t, s)
		}
		for at := 0; at < len(s.payload); at += size {
			cut := s
			cut.seq += uint32(at)
			cut.payload = s.payload[at:min(at+size, len(s.payload))]
			if !begun {
				cut.flags |= tcpSyn
				cut.seq--
				begun = true
			}
			f.send(t, cut)
		}
		f.collect(t)
	}
	return f.transcript(id)
}

func readFlows(t *testing.T, path string) map[gopacket.Flow]*flow {
	t.Helper()
	file := require.Value(os.Open(path))(t)
	defer file.Close()
	packets := require.Value(pcapgo.NewNgReader(file, pcapgo.DefaultNgReaderOptions))(t)
	flows := map[gopacket.Flow]*flow{}
	for {
		data, _, err := packets.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return flows
		}
		require.NoError(t, err)
		packet := gopacket.NewPacket(data, packets.LinkType(), gopacket.NoCopy)
		tcp, ok := packet.Layer(layers.LayerTypeTCP).(*layers.TCP)
		if !ok {
			continue
		}
		addSegment(flows, tcp)
	}
}

func addSegment(flows map[gopacket.Flow]*flow, tcp *layers.TCP) {
	key := tcp.TransportFlow()
	fl := flows[key]
	if fl == nil {
		fl = &flow{next: tcp.Seq}
		flows[key] = fl
	}
	s := segment{
		stream:  uint32(tcp.SrcPort)<<16 | uint32(tcp.DstPort),
		seq:     tcp.Seq,
		payload: tcp.Payload,
	}
	if tcp.SYN {
		s.flags |= tcpSyn
		fl.next = tcp.Seq + 1
	}
	if tcp.FIN {
		s.flags |= tcpFin
	}
	fl.segments = append(fl.segments, s)
	seq := tcp.Seq
	if tcp.SYN {
		seq++
	}
	if skip := int32(fl.next - seq); skip >= 0 && int(skip) < len(tcp.Payload) {
		fl.stream = append(fl.stream, tcp.Payload[skip:]...)
		fl.next = seq + uint32(len(tcp.Payload))
	}
}

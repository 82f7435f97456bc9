package relay

import (
	"bytes"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/test/require"
)

// onlooker is an [Observer] that sees so many messages.
type onlooker struct {
	most, seen, closed int
	ready              string
	hold               chan struct{} // nil: messages are not held
}

func (o *onlooker) Observe(*Message) bool {
	o.seen++
	if o.hold != nil {
		<-o.hold
	}
	return o.seen < o.most
}

func (o *onlooker) Ready(r zmtp.Ready) { o.ready = string(r.Identity) }

func (o *onlooker) Close() { o.closed++ }

// observed is a connection without a codec that is looked at.
func observed(t *testing.T, o *onlooker) *path {
	t.Helper()
	p := &path{ended: make(chan error, 1)}
	client, job := tcpPair(t)
	far, server := tcpPair(t)
	p.client, p.server = client, server
	p.dialer = &Conn{Job: job, Far: far, Observer: o}
	go func() { p.ended <- p.dialer.Run(t.Context(), NewMemory(1<<20)) }()
	return p
}

// What is looked at passes byte for byte: messages before the observer has seen
// enough and after, streams of other protocols, and what would end a link.
func TestObservedStreamsPassByteForByte(t *testing.T) {
	const some = -1
	notPS := appendFrame(greetingAndReady("DEALER"), []byte("no meta \xff\xff"), false)
	pushes := greetingAndReady("DEALER")
	for rng, i := rand.New(rand.NewPCG(3, 3)), 0; i < 5; i++ {
		pushes = push(pushes, rng, 5, 20, i%2 == 0)
	}
	reserved := append(bytes.Clone(pushes), appendCommand(nil, 0, []byte("as if of a proxy"))...)
	malformed := append(bytes.Clone(pushes), 0xff, 0xff, 0xff)
	for name, c := range map[string]struct {
		b          []byte
		most, seen int
	}{
		"pushes":                 {pushes, 1 << 20, 5},
		"all sizes":              {append(bytes.Clone(pushes), stream(1, 200)[len(greetingAndReady("DEALER")):]...), 1 << 20, some},
		"three":                  {append(bytes.Clone(pushes), make([]byte, 100_000)...), 3, 3},
		"http":                   {[]byte("GET / HTTP/1.1\r\n\r\n"), 1, 0},
		"another program's ZMTP": {append(notPS, make([]byte, 100_000)...), 1, 0},
		"a reserved command":     {append(reserved, make([]byte, 100_000)...), 1 << 20, 5},
		"malformed":              {append(malformed, make([]byte, 100_000)...), 1 << 20, 5},
	} {
		t.Run(name, func(t *testing.T) {
			o := &onlooker{most: c.most}
			p := observed(t, o)
			rng := rand.New(rand.NewPCG(1, 1))
			if err := transfer(p.client, p.server, c.b, rng); err != nil {
				t.Error(err)
			}
			if err := transfer(p.server, p.client, []byte("an answer after the end"), rng); err != nil {
				t.Error(err)
			}
			if err := <-p.ended; err != nil {
				t.Error(err)
			}
			if o.seen != c.seen && (c.seen != some || o.seen < 100) || o.closed != 1 || o.seen > 0 && o.ready != "ps9" {
				t.Errorf("%d messages of %q were seen, want %d; closed %d times", o.seen, o.ready, c.seen, o.closed)
			}
		})
	}
}

// A message waits until the observer has let it go.
func TestObserverHolds(t *testing.T) {
	o := &onlooker{most: 1, hold: make(chan struct{})}
	p := observed(t, o)
	b := push(greetingAndReady("DEALER"), rand.New(rand.NewPCG(1, 1)), 5, 20, false)
	require.Value(p.client.Write(b))(t)
	got := make([]byte, len(b))
	read := func(b []byte) error { _, err := io.ReadFull(p.server, b); return err }
	const before = 64 // the greeting; READY may wait with the message
	require.NoError(t, read(got[:before]))
	passed := make(chan error, 1)
	go func() { passed <- read(got[before:]) }()
	select {
	case err := <-passed:
		t.Fatalf("the message went before the observer let it: %v", err)
	case o.hold <- struct{}{}:
	}
	if err := <-passed; err != nil || string(got) != string(b) {
		t.Errorf("what came is not what was sent: %v", err)
	}
	p.client.Close()
	p.server.Close()
	<-p.ended
}

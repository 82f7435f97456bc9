package relay

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// floorOf is SO_RCVLOWAT of a connection.
func floorOf(t *testing.T, c *net.TCPConn) (floor int) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if cErr := raw.Control(func(fd uintptr) { floor, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT) }); cErr != nil || err != nil {
		t.Fatal(cErr, err)
	}
	return floor
}

func awaitFloor(t *testing.T, c *net.TCPConn, want int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); floorOf(t, c) != want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the socket wakes its reader at %d bytes, want %d", floorOf(t, c), want)
		}
	}
}

// towardsFar is a relay whose far end the test reads.
type towardsFar struct {
	*testing.T
	client, job, far *net.TCPConn
	ended            chan error
}

func newTowardsFar(t *testing.T, s Sender) *towardsFar {
	f := &towardsFar{T: t, ended: make(chan error, 1)}
	var near *net.TCPConn
	f.client, f.job = tcpPair(t)
	near, f.far = tcpPair(t)
	c := &Conn{Job: f.job, Far: near, Sender: s, Receiver: &plainCodec{}}
	go func() { f.ended <- c.Run(context.Background(), NewMemory(64<<20)) }()
	t.Cleanup(func() { f.client.Close(); f.far.Close(); <-f.ended })
	f.far.SetReadDeadline(time.Now().Add(time.Minute))
	f.pass(greetingAndReady("DEALER"))
	return f
}

func (f *towardsFar) send(b []byte) {
	f.Helper()
	if _, err := f.client.Write(b); err != nil {
		f.Fatal(err)
	}
}

// pass sends bytes that come out as they are.
func (f *towardsFar) pass(b []byte) {
	f.Helper()
	f.send(b)
	got := make([]byte, len(b))
	if _, err := io.ReadFull(f.far, got); err != nil || !bytes.Equal(got, b) {
		f.Fatalf("%d bytes came out otherwise than they went in: %v", len(b), err)
	}
}

// A direction that waits for the rest of a frame is woken once it has come; what
// ends before ends the connection.
func TestWokenOnceForAFrame(t *testing.T) {
	f := newTowardsFar(t, &plainCodec{never: true})
	message := push(nil, rand.New(rand.NewPCG(1, 1)), 800, 4000, false)
	keysEnd := len(message) - 4000 - 9 // the values' header is a long one
	f.send(message[:keysEnd-6000])
	awaitFloor(t, f.job, 6000)
	f.send(message[keysEnd-6000 : keysEnd-1])
	f.send(message[keysEnd-1 : len(message)-1500])
	awaitFloor(t, f.job, 1500)
	f.send(message[len(message)-1500:])
	got := make([]byte, len(message))
	if _, err := io.ReadFull(f.far, got); err != nil || !bytes.Equal(got, message) {
		t.Fatalf("the message came out otherwise than it went in: %v", err)
	}
	awaitFloor(t, f.job, 1)
	f.send(message[:keysEnd-6000])
	awaitFloor(t, f.job, 6000)
	f.client.CloseWrite()
	if rest, err := io.ReadAll(f.far); err != nil || !bytes.Equal(rest, message[:keysEnd-6000]) {
		t.Errorf("%d bytes of an unfinished message came out, %v; want %d", len(rest), err, keysEnd-6000)
	}
}

// Bytes that pass in the kernel come one by one, whatever the direction waited
// for before.
func TestSplicedWithoutWaiting(t *testing.T) {
	t.Run("a large body", func(t *testing.T) {
		f := newTowardsFar(t, &plainCodec{never: true})
		const size = 200 << 10
		message := push(nil, rand.New(rand.NewPCG(1, 1)), 800, size, false)
		body := len(message) - size
		f.send(message[:body-5000])
		awaitFloor(t, f.job, 5000-9)
		f.send(message[body-5000 : body])
		if _, err := io.ReadFull(f.far, make([]byte, body)); err != nil {
			t.Fatal(err)
		}
		f.pass(message[body : body+size/2])
		f.pass(message[body+size/2 : len(message)-1])
		f.pass(message[len(message)-1:])
		f.pass(message)
	})
	t.Run("all the rest", func(t *testing.T) {
		f := newTowardsFar(t, &plainCodec{})
		foreign := appendFrame(nil, bytes.Repeat([]byte{0xff}, 5000), false)
		f.send(foreign[:1000])
		awaitFloor(t, f.job, len(foreign)-1000)
		f.send(foreign[1000:])
		if _, err := io.ReadFull(f.far, make([]byte, len(appendCommand(nil, flagRaw, nil))+len(foreign))); err != nil {
			t.Fatal(err)
		}
		f.pass([]byte("x"))
	})
}

// An encoded message and the frames that follow it are written at once.
func TestWrittenWithWhatFollows(t *testing.T) {
	messages := push(push(nil, rand.New(rand.NewPCG(1, 1)), 10, 4000, true), rand.New(rand.NewPCG(2, 1)), 10, 100, false)
	link, errs := pump(append(greetingAndReady("DEALER"), messages...), newEncoder(&copying{}, &Flow{}))
	if errs[0] != nil {
		t.Fatal(errs[0])
	}
	link = link[len(greetingAndReady("DEALER")):]
	var in input
	if err := in.init(&source{messages: link}, NewMemory(64<<20)); err != nil {
		t.Fatal(err)
	}
	defer in.release()
	if err := in.fill(); err != nil {
		t.Fatal(err)
	}
	whole, d := in.w, newDecoder(&copying{}, &Flow{})
	var writes [][]byte
	for in.w = 0; in.w <= whole; in.w++ {
		written := &collecting{}
		out := output{conn: written}
		if _, err := d.step(&in, &out); err != nil {
			t.Fatal(err)
		}
		if err := out.flush(); err != nil {
			t.Fatal(err)
		}
		if len(written.all) > 0 {
			writes = append(writes, written.all)
		}
	}
	if len(writes) != 2 || !bytes.Equal(bytes.Join(writes, nil), messages) {
		t.Errorf("2 messages of %d bytes were written in %d pieces of %d", len(messages), len(writes), len(bytes.Join(writes, nil)))
	}
}

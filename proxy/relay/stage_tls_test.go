package relay

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// tlsPair returns both ends of a TLS connection over loopback.
func tlsPair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der := require.Value(x509.CreateCertificate(rand.Reader, template, template, public, private))(t)
	near, far := tcpPair(t)
	server := tls.Server(far, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: private}}})
	client := tls.Client(near, &tls.Config{InsecureSkipVerify: true})
	done := make(chan error, 1)
	go func() { done <- server.Handshake() }()
	require.NoError(t, client.Handshake())
	require.NoError(t, <-done)
	return client, server
}

// Over a link with TLS the stage of the direction to the process is woken while the link is silent,
// also in the middle of a record, again and again, and what comes over the link later passes.
func TestStageIsWokenOverTLS(t *testing.T) {
	process, job := tcpPair(t)
	far, link := tlsPair(t)
	stage := newSieve(-1)
	c := &Conn{Job: job, Far: link, Inbound: stage}
	ended := make(chan error, 1)
	go func() { ended <- c.Run(context.Background(), NewMemory(1<<20)) }()
	expect := func(what string, want []byte) {
		t.Helper()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(process, got); err != nil || string(got) != string(want) {
			t.Fatalf("%s: %q, %v; want %q", what, got, err, want)
		}
	}
	hello := greetingAndReady("DEALER")
	require.Value(far.Write(hello))(t)
	expect("the greeting", hello)
	require.Value(process.Write(greetingAndReady("ROUTER")))(t)
	require.Value(io.ReadFull(far, make([]byte, len(greetingAndReady("ROUTER")))))(t)
	for i := range int32(30) {
		m := withValues(2*i, 1000)
		if !stage.say(own(100000 + i)) {
			t.Fatal("nothing can be said")
		}
		expect("the stage's message", own(100000+i))
		if _, err := far.Write(m[:10]); err != nil { // the beginning of the next message
			t.Fatal(err)
		}
		stage.say(own(200000 + i))
		if i%2 == 0 {
			expect("the stage's message before an incomplete one", own(200000+i))
		}
		require.Value(far.Write(m[10:]))(t)
		if i%2 == 1 { // in either order
			got := make([]byte, len(m)+len(own(200000+i)))
			require.Value(io.ReadFull(process, got))(t)
			continue
		}
		expect("the link's message", m)
	}
	far.Close()
	process.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

package proxy

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/test/require"
)

// A link between sites does not keep a proxy from ending: when the job has no
// connections there any more, it is ended too.
func TestDrainWithLinksBetweenSites(t *testing.T) {
	all := require.Value(jobs.New(jobs.Options{Dir: t.TempDir()}))(t)
	h := newTwoHosts(t, func(_, server *Options) { server.Jobs, server.Grace = all, time.Hour })
	client := h.dial(t)
	served := h.job.next(t)
	echo(t, client, served)
	for range 3 {
		c := require.Value(h.worker.DialSite(context.Background(), netip.MustParseAddr(serverHost)))(t)
		t.Cleanup(func() { c.Close() })
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h.stopServer()
	}()
	require.Eventually(t, "the proxy is ending", h.server.conns.stopping.Load)
	client.Close()
	served.Close()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		h.server.kill(errStopped)
		<-ended
		t.Fatal("links between sites keep a proxy from ending")
	}
	if n := h.server.entry.serving; n != 0 {
		t.Errorf("%d connections are still counted", n)
	}
}

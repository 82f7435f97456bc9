package handshake

import (
	"context"
	"net"
	"net/http"
	"sync"
)

// httpConn is the context key of a request's connection.
type httpConn struct{}

// BoundHTTP makes an HTTP server reset connections without a request in progress, the oldest
// first, if there are too many. A connection counts until the header of its request is
// complete, and again from the answer to the next request. It replaces the server's ConnState
// hook and wraps its ConnContext and handler; call it before Serve.
func BoundHTTP(s *http.Server, set *Set) {
	// The server calls its hooks in the goroutines of the connections.
	var mu sync.Mutex
	ends := map[net.Conn]func() bool{}
	end := func(c net.Conn) {
		mu.Lock()
		// Taken out under the lock and called outside of it: the set has a lock of its own.
		over := ends[c]
		delete(ends, c)
		mu.Unlock()
		if over != nil {
			over()
		}
	}
	// The server would answer "OPTIONS *" itself. The connection would not be uncounted then, and be
	// counted once more with each of them.
	s.DisableGeneralOptionsHandler = true
	// The handler needs the connection itself, which a request otherwise does not tell.
	before := s.ConnContext
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if before != nil {
			ctx = before(ctx, c)
		}
		return context.WithValue(ctx, httpConn{}, c)
	}
	s.ConnState = func(c net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew, http.StateIdle:
			over := set.Begin(c, addressOf(c))
			mu.Lock()
			ends[c] = over
			mu.Unlock()
		case http.StateClosed, http.StateHijacked:
			end(c)
		}
	}
	next := s.Handler
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The server calls the handler once the header is read. From then on a slow body or
		// answer is the handler's concern.
		if c, ok := r.Context().Value(httpConn{}).(net.Conn); ok {
			end(c)
		}
		next.ServeHTTP(w, r)
	})
}

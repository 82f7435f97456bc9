package handshake

import (
	"context"
	"net"
	"net/http"
	"sync"
)

// httpConn is a context's key for the connection by which a request came.
type httpConn struct{}

// BoundHTTP has an HTTP server reset connections that ask for nothing, the oldest
// first, where there are too many. A connection counts until its request's head is
// whole, and from the answer until the next.
func BoundHTTP(s *http.Server, set *Set) {
	var mu sync.Mutex
	ends := map[net.Conn]func() bool{}
	end := func(c net.Conn) {
		mu.Lock()
		over := ends[c]
		delete(ends, c)
		mu.Unlock()
		if over != nil {
			over()
		}
	}
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
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
		if c, ok := r.Context().Value(httpConn{}).(net.Conn); ok {
			end(c)
		}
		next.ServeHTTP(w, r)
	})
}

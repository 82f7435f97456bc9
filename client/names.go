package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/psidecar/psidecar/internal/control"
	"github.com/psidecar/psidecar/page"
)

// errNoNames says that at a socket, if there is one, nobody takes names of keys.
var errNoNames = errors.New("no socket for key names there")

// SetNames sets names at all sockets; where some may be missing, at one at least.
func SetNames(ctx context.Context, out io.Writer, sockets []string, missing bool, media string, text []byte) error {
	told := 0
	var failed []error
	for _, socket := range sockets {
		n, err := setNamesAt(ctx, socket, media, text)
		switch {
		case err == nil:
			told++
			fmt.Fprintf(out, "%s: ranges of keys with names: %d, until the file of --names changes or the process ends\n", socket, n)
		case !missing || !errors.Is(err, errNoNames):
			failed = append(failed, fmt.Errorf("%s: %w", socket, err))
		}
	}
	if told == 0 && len(failed) == 0 {
		return fmt.Errorf("no agent, planner or psidecar up takes names on this host at %s: is one running? --control-socket names another place", strings.Join(sockets, ", "))
	}
	return errors.Join(failed...)
}

// setNamesAt sets names at one socket, and returns how many there are now.
func setNamesAt(ctx context.Context, socket, media string, text []byte) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://control/api/v1/names", bytes.NewReader(text))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", media)
	response, err := control.Client(socket).Do(request)
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return 0, fmt.Errorf("%w: %w", errNoNames, err)
	case err != nil:
		return 0, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 256<<20))
	if err != nil {
		return 0, fmt.Errorf("reading the response: %w", err)
	}
	switch response.StatusCode {
	case http.StatusOK:
		var there page.Names
		err := json.Unmarshal(body, &there)
		return len(there.Names), err
	case http.StatusNotFound, http.StatusMethodNotAllowed: // a proxy's, or an older one's
		return 0, errNoNames
	}
	var refused struct{ Error string }
	if json.Unmarshal(body, &refused) != nil || refused.Error == "" {
		refused.Error = strings.TrimSpace(fmt.Sprintf("%s: %.300s", response.Status, body))
	}
	return 0, errors.New(refused.Error)
}

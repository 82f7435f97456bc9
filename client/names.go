package client

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/control"
	"github.com/psidecar/psidecar/page"
)

// errNoNames says that at a socket, if there is one, nobody takes names of keys.
var errNoNames = errors.New("no socket for key names there")

// PrintNames prints names of ranges of keys as a table, or as CSV that --names reads.
func PrintNames(out io.Writer, names []page.NamedKeys, asCSV bool) error {
	switch {
	case asCSV:
		// With the columns' names even if there are none of keys, so that what comes out can be
		// read in again.
		return csv.NewWriter(out).WriteAll(namesTable(names))
	case len(names) == 0:
		fmt.Fprintln(out, "no key names; set them with --names FILE of agent, planner or up, or with psidecar names set FILE")
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range namesTable(names) {
		// Before tabwriter measures them: a tab in a name would make a column of its own.
		for i := range row {
			row[i] = cli.Clean(row[i])
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

// namesTable returns names as the rows of a CSV file that --names reads, headed by the columns'
// names.
func namesTable(list []page.NamedKeys) [][]string {
	number := func(n uint64) string { return strconv.FormatUint(n, 10) }
	rows := [][]string{{"name", "first", "last", "keys-per-row", "row", "job"}}
	for i := range list {
		r := &list[i].NamedRange
		rows = append(rows, []string{r.Name, number(r.First), number(r.Last), number(r.KeysPerRow), number(r.Row), r.Job})
	}
	return rows
}

// ReadNames reads a file of names and returns it with its media type, as [SetNames] needs them.
// A file with a fault is a usage error.
func ReadNames(path string) (media string, text []byte, err error) {
	if text, err = os.ReadFile(path); err != nil {
		return "", nil, fmt.Errorf("reading names of keys: %w", err)
	}
	if _, err := page.ParseNames(path, text); err != nil {
		return "", nil, cli.Usagef("%s: %w", path, err)
	}
	// The servers would refuse it as well, but without a hint at what to do.
	if len(text) > control.MaxBody {
		return "", nil, cli.Usagef("%s: %d bytes, at most %d are taken; --names of agent, planner and up reads larger ones", path, len(text), control.MaxBody)
	}
	// The server tells the formats apart by this, as it does not see the file's name.
	if strings.HasSuffix(strings.ToLower(path), ".csv") {
		return "text/csv", text, nil
	}
	return "application/yaml", text, nil
}

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

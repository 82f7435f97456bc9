package cli

import (
	"io"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// Names of hosts and jobs, arguments of processes and messages of servers are chosen by others.
// With control characters in them they could clear the screen, hide a line, or make the
// terminal type something. Such characters are escaped as in JSON, so that output in JSON stays
// valid. The command line puts a [Writer] around its standard output and standard error; code
// that controls the terminal itself passes the text it shows through [Clean].

// Clean returns text with all characters escaped that must not be shown as they are, including
// line breaks and tabs, so that it stays in one line.
func Clean(text string) string {
	if !strings.ContainsFunc(text, func(r rune) bool { return r == utf8.RuneError || unsafeIn(r, false) }) {
		return text
	}
	return string(appendClean(nil, []byte(text), false))
}

// A Writer escapes unsafe characters in text of several lines on its way to a terminal. It is
// safe for concurrent use.
type Writer struct {
	w io.Writer

	mu   sync.Mutex // guards rest, and is held during writes to w so that they do not mix
	rest []byte     // incomplete UTF-8 sequence at the end of the last Write
}

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write implements [io.Writer]. An incomplete character at the end of b is held until the next
// call completes it.
func (w *Writer) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := b
	if len(w.rest) > 0 {
		text = append(w.rest, b...)
	}
	whole := len(text)
	// Look for a sequence that starts in the last bytes and is not complete.
	for back := 1; back < utf8.UTFMax && back <= len(text); back++ {
		if at := len(text) - back; utf8.RuneStart(text[at]) {
			if !utf8.FullRune(text[at:]) {
				whole = at
			}
			break
		}
	}
	rest := append([]byte(nil), text[whole:]...)
	if _, err := w.w.Write(cleaned(text[:whole])); err != nil {
		return 0, err
	}
	w.rest = rest
	return len(b), nil
}

// cleaned returns text of several lines with unsafe characters escaped. Text without any, the
// usual case, is returned as it is.
func cleaned(text []byte) []byte {
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && n == 1 || unsafeIn(r, true) {
			return appendClean(make([]byte, 0, len(text)+64), text, true)
		}
		i += n
	}
	return text
}

// appendClean appends text with unsafe characters escaped. Invalid UTF-8 becomes the
// replacement character: a terminal that does not use UTF-8 could take the single bytes for
// control characters.
func appendClean(dst, text []byte, lines bool) []byte {
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		switch {
		case r == utf8.RuneError && n == 1:
			dst = append(dst, `\ufffd`...)
		case unsafeIn(r, lines):
			dst = appendSpelt(dst, r)
		default:
			dst = append(dst, text[:n]...)
		}
		text = text[n:]
	}
	return dst
}

const hex = "0123456789abcdef"

// appendSpelt appends a character escaped as in JSON, in UTF-16.
func appendSpelt(dst []byte, r rune) []byte {
	units := []rune{r}
	if r > 0xffff {
		units = []rune{0xd800 + (r-0x10000)>>10, 0xdc00 + (r-0x10000)&0x3ff}
	}
	for _, u := range units {
		dst = append(dst, '\\', 'u', hex[u>>12&15], hex[u>>8&15], hex[u>>4&15], hex[u&15])
	}
	return dst
}

// unsafeIn reports whether a character has an effect other than being seen: control characters,
// and format characters, which change the order of others or are invisible. With lines, line
// breaks and tabs are allowed.
func unsafeIn(r rune, lines bool) bool {
	if r < utf8.RuneSelf {
		return r == 0x7f || r < ' ' && !(lines && (r == '\n' || r == '\t'))
	}
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
}

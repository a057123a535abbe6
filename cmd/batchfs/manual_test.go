package main

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"batchfs/cmd/batchfs/internal/testfiles"
)

var manual = flag.String("manual", "", "write the manual pages and shell completions to this directory, which stands for /usr")

// TestManual generates a release's manual pages and shell completions, and checks that no Markdown
// characters are lost.
func TestManual(t *testing.T) {
	usr := *manual
	if usr == "" {
		usr = t.TempDir()
	}
	path := func(name string) string {
		path := filepath.Join(usr, name)
		testfiles.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		return path
	}
	root := rootCommand()
	testfiles.NoError(t, root.GenBashCompletionFileV2(path("share/bash-completion/completions/batchfs"), true))
	testfiles.NoError(t, root.GenZshCompletionFile(path("share/zsh/site-functions/_batchfs")))
	testfiles.NoError(t, root.GenFishCompletionFile(path("share/fish/vendor_completions.d/batchfs.fish"), true))

	marked := escapeMarkdown(root)
	root.DisableAutoGenTag = true
	pages := filepath.Dir(path("share/man/man1/any"))
	testfiles.NoError(t, doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "batchfs", Manual: "batchfs"}, pages))
	for command, words := range marked {
		page, err := os.ReadFile(filepath.Join(pages, strings.ReplaceAll(command, " ", "-")+".1"))
		testfiles.NoError(t, err)
		text := strings.NewReplacer(`\&`, "", `\`, "").Replace(string(page))
		for _, word := range words {
			if !strings.Contains(text, word) {
				t.Errorf("the manual page of %s does not show %s, which was taken for Markdown", command, word)
			}
		}
	}
}

var markdown = regexp.MustCompile("[`*_<>]")

// escapeMarkdown escapes the help texts of a command and its subcommands, because cobra generates
// manual pages from Markdown. It returns the words that contain Markdown characters, by command.
func escapeMarkdown(cmd *cobra.Command) map[string][]string {
	marked := map[string][]string{}
	if cmd.Hidden {
		return marked
	}
	for _, text := range []string{cmd.Long, cmd.Example, cmd.Flags().FlagUsages()} {
		for word := range strings.FieldsSeq(text) {
			if markdown.MatchString(word) {
				marked[cmd.CommandPath()] = append(marked[cmd.CommandPath()], word)
			}
		}
	}
	// Examples become code blocks, and flags have nothing to escape.
	cmd.Long = markdown.ReplaceAllString(cmd.Long, `\$0`)
	for _, c := range cmd.Commands() {
		for command, words := range escapeMarkdown(c) {
			marked[command] = words
		}
	}
	return marked
}

package main

import (
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/internal/testfiles"
	"batchfs/internal/failure"
)

var update = flag.Bool("update", false, "write docs/commands.md")

func TestCommandsPage(t *testing.T) {
	t.Setenv("PYTHON", "") // the default of bench --python
	testfiles.CheckGenerated(t, "../../docs/commands.md", commandsPage(rootCommand()), "go test ./cmd/batchfs -run CommandsPage -update", *update)
}

func commandsPage(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString("# Commands\n\n" + toMarkdown(root.Long) +
		"\n`batchfs COMMAND --help` prints the same text as this page, which is generated from it.\n")
	for _, group := range root.Groups() {
		fmt.Fprintf(&b, "\n**%s**\n\n", strings.TrimSuffix(group.Title, ":"))
		for _, cmd := range root.Commands() {
			if cmd.GroupID == group.ID {
				fmt.Fprintf(&b, "- [`%s`](#%s): %s\n", cmd.Name(), strings.ReplaceAll(cmd.CommandPath(), " ", "-"), cmd.Short)
			}
		}
	}
	flags := &cobra.Command{}
	new(config.Flags).Register(flags)
	b.WriteString("\n## Configuration\n\nCommands that read splits share these flags. [config.toml](../config.toml) explains every key.\n\n")
	flags.Flags().VisitAll(func(f *pflag.Flag) { b.WriteString(flagItem(f)) })
	b.WriteString(exitStatuses)
	for _, k := range failure.Kinds {
		fmt.Fprintf(&b, "| %d | `%s` | %s |\n", k.Status, k.Name, k.Meaning)
	}
	// The empty group stands for the commands without a group.
	for _, group := range append(root.Groups(), &cobra.Group{}) {
		for _, cmd := range root.Commands() {
			if cmd.GroupID == group.ID {
				writeCommand(&b, cmd, "##")
			}
		}
	}
	return b.String()
}

const exitStatuses = `
## Exit status

The exit status tells programs why a command failed. A status that is not in the table means that batchfs crashed or was killed. ` + "`mount -d`" + `
leaves nothing mounted if it fails, even if only its output could not be written.

With ` + "`--status-fd N`" + `, a command also reports a failure to descriptor N, which must be open and at least 3, as one line of JSON:
` + "`" + `{"kind":"no_fuse","message":"/dev/fuse: no such file or directory: ..."}` + "`. `mount` writes a line of the kind `ready`" + ` as soon as batches can
be read, and ` + "`cat --count 0` one of the kind `end`" + ` after the last batch. A command that succeeds otherwise writes no line, and neither does
one that crashes or is killed. Messages may change; statuses and kinds don't.

| status | kind | meaning |
|---|---|---|
| 0 | ` + "`ready`, `end`" + ` | success |
`

// writeCommand writes sections for a command and its subcommands. level is the Markdown mark of
// their headings, such as ##.
func writeCommand(b *strings.Builder, cmd *cobra.Command, level string) {
	if cmd.Hidden {
		return
	}
	fmt.Fprintf(b, "\n%s %s\n\n%s.\n\n```text\n%s\n```\n", level, cmd.CommandPath(), cmd.Short, cmd.UseLine())
	if cmd.Long != "" {
		b.WriteString("\n" + toMarkdown(cmd.Long))
	}
	flags, readsSplits := "", cmd.Flags().Lookup("data") != nil
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if isShared := readsSplits && slices.Contains([]string{"config", "data", "set"}, f.Name); !isShared && !f.Hidden && f.Name != "help" {
			flags += flagItem(f)
		}
	})
	if readsSplits {
		flags += "- `-c`, `--data`, `--set`: see [configuration](#configuration)\n"
	}
	if flags != "" {
		b.WriteString("\nFlags:\n\n" + flags)
	}
	fmt.Fprintf(b, "\nExamples:\n\n```text\n%s\n```\n", strings.ReplaceAll(cmd.Example[2:], "\n  ", "\n"))
	for _, sub := range cmd.Commands() {
		writeCommand(b, sub, level+"#")
	}
}

func flagItem(f *pflag.Flag) string {
	value, usage := pflag.UnquoteUsage(f)
	name := strings.TrimSuffix("--"+f.Name+" "+value, " ")
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", " + name
	}
	if !slices.Contains([]string{"", "0", "false", "[]"}, f.DefValue) {
		usage += " (default " + f.DefValue + ")"
	}
	return fmt.Sprintf("- `%s`: %s\n", name, markCode(usage))
}

// toMarkdown converts a help text. Paragraphs indented by 4 become code blocks, and those indented
// by 2 become lists.
func toMarkdown(help string) string {
	var paragraphs []string
	for paragraph := range strings.SplitSeq(help, "\n\n") {
		switch {
		case strings.HasPrefix(paragraph, "    "):
			paragraph = "```text\n" + strings.ReplaceAll(paragraph[4:], "\n    ", "\n") + "\n```"
		case strings.HasPrefix(paragraph, "  "):
			paragraph = "- " + strings.ReplaceAll(markCode(paragraph[2:]), "\n  ", "\n- ")
		default:
			paragraph = markCode(paragraph)
		}
		paragraphs = append(paragraphs, paragraph+"\n")
	}
	return strings.Join(paragraphs, "\n")
}

// codeWord matches code in a help text: quoted text, an option, or a word with a character that
// occurs only in paths, settings and placeholders.
var codeWord = regexp.MustCompile(
	"`[^`]*`|" + `"batchfs [^"]*"|\B--?[a-z][-a-z]*|[^\s"(]*[/_<>=*~][^\s"]*[^\s".,;:)]|[A-Za-z0-9.]+\.(json|toml|npy|bin|txt)\b`)

func markCode(text string) string {
	return codeWord.ReplaceAllStringFunc(text, func(code string) string {
		return "`" + strings.Trim(code, "`\"'") + "`"
	})
}

// An error of the command line says how to call the command, and does not quote Go.
func TestUsageErrors(t *testing.T) {
	for args, want := range map[string]string{
		"unmount":                                "usage: batchfs unmount MOUNTPOINT [flags]",
		"inspect a 1 2":                          "usage: batchfs inspect SPLIT K [flags]",
		"status":                                 `unknown command "status" for "batchfs"; usage: batchfs COMMAND [flags] (--help lists the commands)`,
		"-d mount --data data /mnt/batches":      `unknown command "/mnt/batches" for "batchfs"; usage: batchfs COMMAND [flags]`,
		"umount mnt":                             "Did you mean this?",
		"-V":                                     "unknown shorthand flag: 'V' in -V; usage: batchfs COMMAND [flags]",
		"cache prnue":                            `unknown command "prnue" for "batchfs cache"; usage: batchfs cache COMMAND (--help explains it)`,
		"mount --colour 4":                       "unknown flag: --colour; usage: batchfs mount [MOUNTPOINT] [flags] (--help explains it)",
		"mount --block-size 4":                   "unknown flag: --block-size; to set this key, use --set batch.block_size=VALUE; usage: batchfs mount [MOUNTPOINT] [flags]",
		"cat train --allow_other":                "unknown flag: --allow_other; to set this key, use --set mount.allow_other=VALUE; usage: ",
		"info a --block-bytes 4":                 "unknown flag: --block-bytes; usage: ",
		"cat train --count -1":                   `--count: must be a whole number from 0 on (got "-1"); usage: `,
		"check a --overlap 99999999999999999999": `--overlap: is out of range (got "99999999999999999999")`,
		"plan --epochs x":                        `--epochs: must be a number (got "x"); usage: `,
		"mount --data=":                          "the name is empty, perhaps because a variable is not set; usage: ",
		"view a --config=":                       "the name is empty, perhaps because a variable is not set; usage: ",
		"view --port 65536":                      `--port: must be a whole number from 0 to 65535 (got "65536"); usage: `,
	} {
		err := run(strings.Fields(args), new(strings.Builder))
		if failure.KindOf(err) != failure.Usage || !strings.Contains(fmt.Sprint(err), want) || strings.Contains(err.Error(), "strconv") {
			t.Errorf("batchfs %s: got the error %v, want %s", args, err, want)
		}
	}
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if kind := f.Value.Type(); strings.HasPrefix(kind, "int") || strings.HasPrefix(kind, "uint") || kind == "float64" {
				if kindOfNumber[kind] == "" {
					t.Errorf("kindOfNumber lacks %s, the type of --%s", kind, f.Name)
				}
			}
		})
		for _, c := range cmd.Commands() {
			check(c)
		}
	}
	check(rootCommand())
}

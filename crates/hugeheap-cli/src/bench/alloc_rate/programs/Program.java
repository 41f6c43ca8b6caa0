/** The loop of `hugeheap bench alloc-rate` in Java: plain|field COUNT. A header of 12 bytes and an int are 16 bytes. */
public class Program {
    int number;
    static Program kept, keptBefore;

    static void plain(long count) {
        Program last = null, before = null;
        for (long index = 0; index < count; index++) {
            before = last;
            last = new Program();
        }
        kept = last;
        keptBefore = before;
    }

    static void field(long count) {
        Program last = null, before = null;
        for (long index = 0; index < count; index++) {
            before = last;
            last = new Program();
            last.number = (int) index;
        }
        kept = last;
        keptBefore = before;
    }

    public static void main(String[] words) {
        boolean field = words[0].equals("field");
        long count = Long.parseLong(words[1]);
        // Compiled before it counts: the first calls are interpreted.
        for (int round = 0; round < 20; round++) {
            if (field) field(50_000); else plain(50_000);
        }
        long begin = System.nanoTime();
        if (field) field(count); else plain(count);
        double seconds = (System.nanoTime() - begin) / 1e9;
        System.out.println("{\"seconds\": " + seconds + ", \"objects\": " + count + ", \"bytes\": 16}");
    }
}
